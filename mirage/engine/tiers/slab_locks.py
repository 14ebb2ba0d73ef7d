"""Slabs (large parts) of the pool's host memory, each of which this process page-locks once, until
the pool wants it back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from socket import socket

from mirage.tiers.lending.engine_line import EngineLine
from vmm.driver import Driver

logger = logging.getLogger("mirage.engine.tiers")


@dataclass(frozen=True)
class LockedSlab:
    """Page-locked host memory: `nbytes` bytes at `address`."""

    driver: Driver
    address: int
    nbytes: int

    def close(self) -> None:
        """Unlock the slab; no copy may be in progress. Raises `VmmError` if the device refuses."""
        self.driver.unpin(self.address)


def slab_locks(line: int, driver: Driver, start: int) -> EngineLine[LockedSlab]:
    """Return this process's end of the connection (the line) over which it asks the pool for slabs
    that it may page-lock, and the pool asks for them back. `line` is the file descriptor of that
    connection, from the pool's `locks`; `start` is the address of the pool's host memory in this
    process."""

    def lock(offset: int, nbytes: int, fds: Sequence[int]) -> LockedSlab:
        driver.pin(start + offset, nbytes)
        return LockedSlab(driver, start + offset, nbytes)

    return EngineLine(socket(fileno=line), lock, _warn, lasting=True)


def _warn(why: str) -> None:
    logger.warning("slabs of the host pool are locked no more: %s; blocks are locked singly", why)
