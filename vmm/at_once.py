"""Work on large ranges of memory, divided among several threads.

The kernel zeroes pages and a core copies bytes at a few gigabytes per second, so one thread takes
seconds for the layers of a model. The work on a piece has to release the interpreter's lock, as
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
"""Most threads: beyond this number the memory bandwidth is the limit, not the cores."""


def thread_count(pieces: int) -> int:
    """Number of threads for so many `pieces`: the least of their number, `MOST_THREADS`, and the
    processors that this process may use.
    """
    return min(pieces, MOST_THREADS, len(os.sched_getaffinity(0)))


def at_once(work: Callable[..., object], pieces: Sequence[tuple[Any, ...]]) -> None:
    """Call `work` with the arguments in each of `pieces`, by several threads, and wait for all
    calls.

    Raises the error of the first of `pieces` whose call failed, after all threads have ended.
    Pieces after it may be left out then.
    """
    if (threads := thread_count(len(pieces))) < 2:
        for piece in pieces:
            work(*piece)
        return
    with ThreadPoolExecutor(threads, "vmm-at-once") as pool:
        for _ in pool.map(lambda piece: work(*piece), pieces):
            pass


def cut(nbytes: int) -> Iterator[tuple[int, int]]:
    """Offset and size of each piece of `nbytes` bytes; pieces have `PIECE_BYTES`, the last one the
    rest.
    """
    return ((at, min(PIECE_BYTES, nbytes - at)) for at in range(0, nbytes, PIECE_BYTES))


def populate(address: int, nbytes: int, *, writable: bool = True) -> None:
    """Allocate the memory behind these addresses now: for writing if `writable`, else for reading.
    Raises `OSError` if there is none.

    Does nothing on kernels before 5.14: there memory is allocated when it is touched.
    """

    def work(offset: int, size: int) -> None:
        try:
            libc.populate(address + offset, size, writable=writable)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise

    at_once(work, list(cut(nbytes)))
