"""Slabs of the pool's host memory: each is locked for the device once, until the pool wants it
back."""

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
    """Locked memory: `nbytes` of host memory at `address`."""

    driver: Driver
    address: int
    nbytes: int

    def close(self) -> None:
        """Unlock the slab; no copy may be in progress. Raises `VmmError`."""
        self.driver.unpin(self.address)


def slab_locks(line: int, driver: Driver, start: int) -> EngineLine[LockedSlab]:
    """Return the line over which this process locks slabs. `line` is the descriptor from the pool's
    `locks`, `start` the address of its host memory in this process."""

    def lock(offset: int, nbytes: int, fds: Sequence[int]) -> LockedSlab:
        driver.pin(start + offset, nbytes)
        return LockedSlab(driver, start + offset, nbytes)

    return EngineLine(socket(fileno=line), lock, _warn, lasting=True)


def _warn(why: str) -> None:
    logger.warning("slabs of the host pool are locked no more: %s; blocks are locked singly", why)
