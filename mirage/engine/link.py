"""Speed of the link between host memory and the device, for engines that load no layer over it."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

from vmm.driver import DeviceError, Driver, OutOfMemory
from vmm.host import HostBuffer
from vmm.pages import PagePool
from vmm.space import Range

logger = logging.getLogger("mirage.engine.link")

LARGEST = 64 << 20
"""Largest number of bytes of a timed copy, for which the latency of the first byte is
negligible."""


def load_s(driver: Driver, pool: PagePool, nbytes: int, rounds: int = 3) -> float:
    """Return the seconds to copy `nbytes` of host memory to pages of the pool; 0 if they cannot be
    measured.

    It is the least of `rounds` copies, because engines that start at the same time can only make it
    longer. At most `LARGEST` bytes are copied, and the seconds scaled to `nbytes`. The copies use
    pages that the pool's grant leaves, and give them back.
    """
    page = driver.page_bytes
    pages = min(min(nbytes, LARGEST) // page, pool.available)
    if pages <= 0:
        return 0.0
    try:
        taken = min(_copied(driver, pool, pages * page, rounds))
    except (DeviceError, OutOfMemory) as error:
        logger.warning("the link was not timed, so no KV goes down at a turn's end: %s", error)
        return 0.0
    return taken * nbytes / (pages * page)


def _copied(driver: Driver, pool: PagePool, nbytes: int, rounds: int) -> list[float]:
    """Return the seconds of each copy but the first, which touches memory that was never used."""
    with ExitStack() as ends:
        host = HostBuffer(nbytes, driver.host_node)
        ends.callback(host.close)
        host.tensor().fill_(1)
        driver.pin(host.address, nbytes)
        ends.callback(driver.unpin, host.address)
        home = Range(driver, nbytes)
        ends.callback(home.close)
        home.back(0, pool.take(nbytes // driver.page_bytes, "link"))
        ends.callback(lambda: pool.give(home.unback(0, nbytes)))
        stream = driver.stream()
        ends.callback(stream.close)
        taken = []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            stream.copy(home.address, host.address, nbytes)
            stream.synchronize()
            taken.append(time.perf_counter() - start)
        return taken[1:]
