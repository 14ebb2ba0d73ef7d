"""Stored measurements: a file for each part, used again if its inputs have not changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

FORMAT = 3
"""Version of a part's format; raise it when the content changes."""


@dataclass(frozen=True)
class Part:
    """Measurements of one child process, the seconds that they took, their date, and the mean
    number of other processes that wanted a core meanwhile.
    """

    measured: Any
    others: float
    seconds: float
    date: str


class Parts:
    """The stored parts of one profile in `folder`. `key` has all inputs that they depend on.

    A part with another key, or in a damaged file, counts as missing.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        """Raises `OSError` if the folder cannot be made."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = json.loads(json.dumps(dict(key) | {"format": FORMAT}))

    def get(self, name: str) -> Part | None:
        """The stored part; None if it must be measured."""
        try:
            kept = json.loads(self._file(name).read_text())
            return Part(**kept["part"]) if kept["key"] == self._key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, name: str, part: Part) -> None:
        """Store a part, completely or not at all. Raises `OSError` if it cannot be written."""
        draft = self._file(name).with_suffix(".draft")
        draft.write_text(json.dumps({"key": self._key, "part": asdict(part)}, indent=1) + "\n")
        draft.replace(self._file(name))

    def forget(self) -> None:
        """Remove all stored parts, not their logs. Raises `OSError` if one cannot be removed."""
        for path in self.folder.glob("*.json"):
            path.unlink()

    def log(self, name: str) -> Path:
        """Path of the log with the child's output."""
        return self._file(name).with_suffix(".log")

    def _file(self, name: str) -> Path:
        return self.folder / f"{quote(name, safe='')}.json"
