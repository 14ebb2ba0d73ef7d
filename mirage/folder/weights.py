"""``*.safetensors`` and their index: the files that hold the weights, and the tensors in them.

Only headers are read. The library with which vLLM loads decides whether a header is complete.
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open

from mirage.config import ConfigError
from mirage.folder import reading
from mirage.problems import one_line, shown

INDEX = "model.safetensors.index.json"
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.gguf")
"""Weights in other formats that vLLM loads; only vLLM can read their content."""
SHARD = re.compile(r"(.+)-(\d{5,})-of-(\d{5,})\.safetensors")
NOT_COVERED = "not fully covered"


class ShardIndex(BaseModel):
    """File name of each tensor, by the tensor's name."""

    model_config = ConfigDict(strict=True)

    weight_map: dict[str, str]


def check_weights(folder: Path) -> None:
    """Check the headers of all ``*.safetensors`` files, or that weights in another format can be
    read. Raises `ConfigError` for missing or damaged weights.
    """
    for path in files(folder):
        header(path)


def tensors(folder: Path) -> dict[str, list[int]]:
    """Dimensions of all tensors by name, from headers alone; empty for weights in another format.
    Raises `ConfigError` if a file is missing or damaged.
    """
    found: dict[str, list[int]] = {}
    for path in files(folder):
        found |= header(path)
    return found


def files(folder: Path) -> list[Path]:
    """The ``*.safetensors`` files that vLLM loads; empty for other formats. Raises `ConfigError` if
    one is missing, or if there are no weights.
    """
    if reading.there(folder / INDEX):
        # Some folders carry a second, consolidated copy that vLLM leaves out as well.
        return _indexed(folder)
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        _check_others(folder)
    _check_shards(folder, [path.name for path in found])
    return found


def header(path: Path) -> dict[str, list[int]]:
    """Dimensions of the tensors in one file, by name. Raises `ConfigError` unless the file is
    complete.
    """
    reading.openable(path)
    try:
        with safe_open(path, "np") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        why = "it is cut short" if NOT_COVERED in str(error) else one_line(str(error))
        raise ConfigError(f"{path}: not a whole safetensors file ({why}): fetch it again") from None


def _indexed(folder: Path) -> list[Path]:
    index = folder / INDEX
    names = sorted(set(reading.read(index, ShardIndex).weight_map.values()))
    if not names:
        raise ConfigError(f"{index}: its weight_map names no file: remove it or fetch it again")
    if odd := next((n for n in names if Path(n).name != n or not n.isprintable()), None):
        raise ConfigError(f"{index}: {shown(odd)} is no name of a file beside it: fetch it again")
    missing = [name for name in names if not reading.there(folder / name)]
    if missing:
        raise ConfigError(
            f"{index}: of {len(names)} files that it names {len(missing)} are not there, as "
            f"{shown(missing[0])}: fetch them, or the index that belongs to the files"
        )
    return [folder / name for name in names]


def _check_others(folder: Path) -> None:
    """Raises `ConfigError` unless the folder has readable weights of another format."""
    others = [path for kind in OTHER_WEIGHTS for path in sorted(folder.glob(kind))]
    if not others:
        raise ConfigError(f"{folder}: holds no *.safetensors file, and no other weights")
    for path in others:
        reading.openable(path)


def _check_shards(folder: Path, names: list[str]) -> None:
    """Raises `ConfigError` if a numbered file is missing, judged by the names alone."""
    found = [match for match in map(SHARD.fullmatch, names) if match]
    for name, count in {(match[1], match[3]) for match in found}:
        here = {int(match[2]) for match in found if (match[1], match[3]) == (name, count)}
        if len(here) < int(count):
            raise ConfigError(
                f"{folder}: holds {len(here)} of {int(count)} files "
                f"{one_line(name)}-...-of-{count}.safetensors: fetch the others"
            )
