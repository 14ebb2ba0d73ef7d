"""Standard output whose first write error ends a command with one line."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mirage.errors import CommandFailed
from mirage.processes.exits import FAILED


class PrintedFile(io.FileIO):
    """Standard output. The first write that fails raises an error; all later ones are discarded
    without one."""

    _failed = False

    def write(self, data: Any, /) -> int:
        """Write `data`, or discard it if a write has failed before. The first failure raises
        `BrokenPipeError` if the reader has gone, else `CommandFailed`.
        """
        if self._failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self._failed = True
            if isinstance(error, BrokenPipeError):
                raise
            raise CommandFailed(
                f"standard output cannot be written ({error.strerror or error})"
            ) from None


@contextmanager
def printed() -> Iterator[None]:
    """Context in which the first failed write to standard output raises `BrokenPipeError` if the
    reader has gone, else `CommandFailed`.

    If the reader has gone when the rest is written at the end, the process exits with `FAILED` and
    without a message.
    """
    before = sys.stdout
    if before is None:  # it was closed before the start
        yield
        return
    file = PrintedFile(before.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(file),
        before.encoding,
        before.errors,
        line_buffering=before.isatty(),
    )
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            sys.exit(FAILED)
        finally:
            sys.stdout = before
