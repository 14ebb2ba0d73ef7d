"""Small values of one machine by key, each in a file that its owner alone may read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from mirage.private_file import replace_private


class FactsFolder:
    """Facts in a folder, which is made when the first fact is put."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, value: bytes, *, absent: bool = False) -> bool:
        """Keep a fact. With `absent`, keep it only if the key has none; False if it has one. Raises
        `OSError` if the file cannot be written.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / quote(key, safe="")
        if not absent:
            replace_private(path, value)
            return True
        made = self._folder / f".{path.name}.{os.getpid()}"
        replace_private(made, value)
        try:
            os.link(made, path)
        except FileExistsError:
            return False
        finally:
            made.unlink()
        return True

    def beginning(self, prefix: str) -> dict[str, bytes]:
        """Facts whose keys begin with `prefix`. Raises `OSError` if a file cannot be read."""
        found = {}
        with suppress(FileNotFoundError):
            for path in sorted(self._folder.iterdir()):
                if not path.name.startswith(".") and (key := unquote(path.name)).startswith(prefix):
                    found[key] = path.read_bytes()
        return found
