"""Folders from which adapters may be loaded while engines run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mirage.folder.adapter import NAME, WEIGHTS

FILES = (NAME, WEIGHTS)
"""Files of an adapter. Files of formats that can hold code (``.bin``, ``.pt``) are never copied."""
KEY = "adapter_folders"


def check_allowed(folder: Path, allowed: Sequence[Path]) -> None:
    """Check that an adapter and its files lie inside one of the `allowed` folders, with links
    resolved.

    `allowed` are absolute and without links. Raises `ValueError` with one line if they do not, or
    if there is an adapter without `safetensors`.
    """
    if not allowed:
        raise ValueError(f"{folder} may not be loaded: name a folder for adapters in {KEY}")
    found = Path(os.path.realpath(folder))
    if not _inside(found, allowed):
        known = ", ".join(map(str, allowed))
        raise ValueError(f"{found} lies outside of {KEY}: put it into {known}")
    for name in FILES:
        if not _inside(target := Path(os.path.realpath(found / name)), allowed):
            raise ValueError(f"{found / name} is a link to {target}, outside of {KEY}: copy it")
    if (found / NAME).is_file() and not (found / WEIGHTS).is_file():
        raise ValueError(f"no {WEIGHTS} in {found}: no other format is loaded")


def _inside(path: Path, allowed: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in allowed)
