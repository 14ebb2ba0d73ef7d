"""Counts of opens and reads of a file, as the kernel reports them (inotify)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

IN_ACCESS, IN_OPEN = 0x1, 0x20
EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def opened(file: Path) -> Iterator[Callable[[], int]]:
    """Context with a function that returns how often the file was opened or read since its last
    call. Reads through a mapping are not counted.
    """
    watching = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if _libc.inotify_add_watch(watching, os.fsencode(file), IN_ACCESS | IN_OPEN) < 0:
            raise OSError(ctypes.get_errno(), f"{file} cannot be watched")
        yield lambda: _events(watching)
    finally:
        os.close(watching)


def _events(watching: int) -> int:
    """Number of waiting inotify events. Equal ones in a row may have been merged by the kernel."""
    found = 0
    while True:
        try:
            found += len(os.read(watching, 4096)) // EVENT.size
        except BlockingIOError:
            return found
