"""Large ranges of memory, worked on by several threads at once.

The kernel zeroes pages and a core copies bytes at a few gigabytes per second, so the layers of a
model take one thread seconds. What is done to a piece has to let go of the interpreter's lock, as
system calls and `ctypes.memmove` do.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vmm import libc

PIECE_BYTES = 16 << 20
MOST_THREADS = 8
"""Threads after which memory, not a core, is what limits."""


def thread_count(pieces: int) -> int:
    """Threads for so many pieces: no more than processors that this process may use."""
    return min(pieces, MOST_THREADS, len(os.sched_getaffinity(0)))


def at_once(work: Callable[..., object], pieces: Sequence[tuple[Any, ...]]) -> None:
    """Call `work` with each of `pieces`, in any order.

    Raises the error of the first piece that has one; then no thread works any more.
    """
    if (threads := thread_count(len(pieces))) < 2:
        for piece in pieces:
            work(*piece)
        return
    with ThreadPoolExecutor(threads, "vmm-at-once") as pool:
        for _ in pool.map(lambda piece: work(*piece), pieces):
            pass


def cut(nbytes: int) -> Iterator[tuple[int, int]]:
    """Offset and size of each piece of so many bytes."""
    return ((at, min(PIECE_BYTES, nbytes - at)) for at in range(0, nbytes, PIECE_BYTES))


def populate(address: int, nbytes: int, *, writable: bool = True) -> None:
    """Have memory behind these addresses now. Raises `OSError` if there is none.

    A kernel before 5.14 cannot be asked: it has memory there when it is touched.
    """

    def work(offset: int, size: int) -> None:
        try:
            libc.populate(address + offset, size, writable=writable)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise

    at_once(work, list(cut(nbytes)))
