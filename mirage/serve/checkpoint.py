"""Whether a model folder holds what vLLM will load, seen from its files' headers alone.

Neither torch nor vLLM is imported: a folder that is missing or cut short is found in
milliseconds, before vLLM is asked about the model.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from mirage.config import ConfigError
from mirage.units import MIB

MAX_HEADER_BYTES = 100 * MIB
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.gguf")
"""Formats that vLLM loads as well; what is in them only it can tell."""


def check_checkpoint(folder: Path) -> None:
    """Raises `ConfigError` with one line if the folder or a file in it is missing or torn."""
    read_config(folder)
    for path in _weight_files(folder):
        _header(path)


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json. Raises `ConfigError`, also if there is no such folder."""
    if not folder.is_dir():
        raise ConfigError(
            f"no model folder at {folder}: correct the path or make the model first "
            "(the demonstration's: mirage models out/models)"
        )
    return _mapping(folder / "config.json")


def tensors(folder: Path) -> dict[str, list[int]]:
    """Names and dimensions of all tensors in *.safetensors. Raises `ConfigError`."""
    found: dict[str, list[int]] = {}
    for path in _weight_files(folder):
        found |= {name: _dimensions(path, entry) for name, entry in _header(path).items()}
    return found


def _dimensions(path: Path, entry: dict[str, Any]) -> list[int]:
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(isinstance(each, int) for each in shape):
        raise ConfigError(f"{path}: a tensor has no dimensions, but {shape!r}")
    return shape


def _mapping(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        # Some folders carry a second, consolidated copy that vLLM leaves out as well.
        weight_map = _mapping(index).get("weight_map", {})
        return [folder / name for name in sorted(set(weight_map.values()))]
    files = sorted(folder.glob("*.safetensors"))
    if not files and not any(any(folder.glob(kind)) for kind in OTHER_WEIGHTS):
        raise ConfigError(f"{folder}: holds no *.safetensors file, and no other weights")
    return files


def _header(path: Path) -> dict[str, dict[str, Any]]:
    """What it says of each tensor. Raises `ConfigError` unless all of them lie inside the file."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
            return _checked(header, path.stat().st_size - 8 - length)
    except (OSError, ValueError, TypeError, LookupError, RecursionError, struct.error) as error:
        raise ConfigError(f"{path}: not a safetensors file ({error})") from None


def _checked(header: Any, nbytes: int) -> dict[str, dict[str, Any]]:
    """Its tensors. Raises `ValueError` if they reach beyond the `nbytes` that follow it."""
    if not isinstance(header, dict):
        raise ValueError("no table of tensors")
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    ends = [entry["data_offsets"][1] for entry in entries.values()]
    if max(ends, default=0) > nbytes:
        raise ValueError(f"its tensors take {max(ends)} bytes, it holds {nbytes}: it is cut short")
    return entries
