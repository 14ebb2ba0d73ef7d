"""Scenes of a decoding batch for the claims: `benchmarks/experiments/tierkv.yaml`, keys changed."""

from __future__ import annotations

from benchmarks.claims.scenes import FOLDERS
from benchmarks.decode.setup import DecodeSetup, Decoding
from mirage.config import read_yaml, validated

FOLDER, _ = FOLDERS
MARK = "tierkv"
Value = str | float | int


def scene(times: float, turn: int, **others: Value) -> str:
    """Name of a scene: `times` oversubscribed, turns of `turn` steps, other keys of `decode`, and
    the `model`.
    """
    changes: dict[str, Value] = {"oversubscription": times, "turn_steps": turn, **others}
    return " ".join([MARK, *(f"{key}={value}" for key, value in changes.items())])


def setup(name: str) -> DecodeSetup:
    """Setup of the scene with that name. Raises `ConfigError` for a key or a value that is not
    possible.
    """
    path = FOLDER / "tierkv.yaml"
    raw = read_yaml(path)
    for change in name.split()[1:]:
        key, _, value = change.partition("=")
        (raw if key == "model" else raw["decode"])[key] = _value(value)
    return DecodeSetup(validated(Decoding, raw, path), FOLDER)


def is_one(name: str) -> bool:
    """True if the scene is one of a decoding batch, which `setup` makes; False for a scene of
    `claims.yaml`.
    """
    return name.split()[0] == MARK


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
