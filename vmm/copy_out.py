"""Copies from the device to host memory, by several threads at once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack, closing
from queue import SimpleQueue

from vmm.at_once import PIECE_BYTES, at_once, cut, thread_count
from vmm.driver import Driver
from vmm.host import HostBuffer

Copy = tuple[int, int, int]
"""Host address, device address, and number of bytes."""


def copy_out(driver: Driver, copies: Sequence[Copy], *, locked: bool) -> None:
    """Make these copies from the device, and wait until all have ended. `locked`: the host memory
    is pinned (`Driver.pin`).

    Copies to memory that is not pinned go through pinned buffers if the driver can pin memory: only
    to such memory does the device copy at the link's speed, and from several threads. Raises
    `VmmError` if a copy is refused, or if there is no memory for these buffers or it cannot be
    pinned.
    """
    pieces = [(dst + at, src + at, size) for dst, src, nbytes in copies for at, size in cut(nbytes)]
    if locked or not driver.locks_memory:
        at_once(driver.copy, pieces)
        return
    free: SimpleQueue[int] = SimpleQueue()

    def carry(dst: int, src: int, nbytes: int) -> None:
        between = free.get()
        try:
            driver.copy(between, src, nbytes)
            ctypes.memmove(dst, between, nbytes)
        finally:
            free.put(between)

    with ExitStack() as over:
        for _ in range(thread_count(len(pieces))):
            buffer = over.enter_context(closing(HostBuffer(PIECE_BYTES, driver.host_node)))
            driver.pin(buffer.address, PIECE_BYTES)
            over.callback(driver.unpin, buffer.address)
            free.put(buffer.address)
        at_once(carry, pieces)
