"""Copies of blocks from peers to host memory, in a thread of their own."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from mirage.tiers.blocks import Name


class Mover:
    """Thread that copies blocks, and calls `told` at the end of each. `bytes_per_s` limits their
    speed together."""

    def __init__(self, told: Callable[[Name], None], bytes_per_s: float | None) -> None:
        self._told, self._bytes_per_s = told, bytes_per_s
        self._thread = ThreadPoolExecutor(1, "peer-copy")

    def move(self, name: Name, source: memoryview, target: memoryview) -> None:
        """Begin a copy, and return immediately; neither memory may change until it has ended."""
        self._thread.submit(self._move, name, source, target)

    def end(self) -> None:
        """Stop. Nothing is copied any more when this returns; waiting copies are dropped. A second
        call does nothing."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _move(self, name: Name, source: memoryview, target: memoryview) -> None:
        if self._bytes_per_s is not None:
            time.sleep(source.nbytes / self._bytes_per_s)
        _copy(target, source)
        self._told(name)


def _copy(target: memoryview, source: memoryview) -> None:
    """Copy without the GIL, so that other threads run meanwhile; an assignment to a view would hold
    it."""
    one = (ctypes.c_char * target.nbytes).from_buffer(target)
    other = (ctypes.c_char * source.nbytes).from_buffer(source)
    ctypes.memmove(one, other, source.nbytes)
    del one, other  # a region with a view of it is not unmapped
    source.release()
    target.release()
