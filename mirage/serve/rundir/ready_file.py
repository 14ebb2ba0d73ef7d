"""File by which a waiting script learns that the server is ready."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mirage.config import ConfigError


class ReadyFile:
    """File that exists at `path` from `write` to `remove`; none if `path` is None."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def prepare(self) -> None:
        """Remove the file of an earlier run, and check that a file can be written.

        Raises `ConfigError` if the path is no file, or its folder does not exist or refuses files.
        """
        if self._path is None:
            return
        with self._told():
            if self._path.exists() and not self._path.is_file():
                raise ConfigError(f"--ready-file {self._path}: it is no file: name another one")
            if not self._path.parent.is_dir():
                raise ConfigError(
                    f"--ready-file {self._path}: its folder does not exist: make it, or name "
                    "another file"
                )
            self._path.unlink(missing_ok=True)
            self._unfinished(self._path).write_text("")
            self._unfinished(self._path).unlink()

    def write(self, url: str) -> None:
        """Write the file with URL and process id, in one step. Raises `ConfigError` if it cannot be
        written."""
        if self._path is None:
            return
        with self._told():
            unfinished = self._unfinished(self._path)
            unfinished.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
            unfinished.replace(self._path)

    def remove(self) -> None:
        """Remove the file. Idempotent; errors are ignored."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _unfinished(self, path: Path) -> Path:
        return path.with_name(f".mirage-ready-{os.getpid()}")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror
            raise ConfigError(
                f"--ready-file {self._path}: it cannot be written ({why}): name another file"
            ) from None
