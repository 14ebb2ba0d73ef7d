"""Scenes of a decoding batch for the claims: `benchmarks/experiments/tierkv.yaml`, keys changed."""

from __future__ import annotations

from benchmarks.claims.scenes import FOLDERS
from benchmarks.decode.setup import DecodeSetup, Decoding
from mirage.config import read_yaml, validated

FOLDER, _ = FOLDERS
MARK = "tierkv"
Value = str | float | int


def scene(times: float, turn: int, **others: Value) -> str:
    """The name of one: `times` oversubscribed, a `turn` of so many steps, other keys of `decode`
    and the `model` as given."""
    changes: dict[str, Value] = {"oversubscription": times, "turn_steps": turn, **others}
    return " ".join([MARK, *(f"{key}={value}" for key, value in changes.items())])


def setup(name: str) -> DecodeSetup:
    """The scene of that name. Raises `ConfigError`."""
    path = FOLDER / "tierkv.yaml"
    raw = read_yaml(path)
    for change in name.split()[1:]:
        key, _, value = change.partition("=")
        (raw if key == "model" else raw["decode"])[key] = _value(value)
    return DecodeSetup(validated(Decoding, raw, path), FOLDER)


def is_one(name: str) -> bool:
    """True if `setup` knows the scene, or `claims.yaml` does."""
    return name.split()[0] == MARK


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
