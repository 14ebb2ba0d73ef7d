"""Speeds of the link and of page operations, through the driver alone: a child process of `mirage
profile`.

It copies from host to device by size, alone and while as much is copied the other way; and it
creates, maps, clears, unmaps and releases pages by their number. All values are kept, in seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from mirage.processes.answering import answer
from mirage.units import align_up
from vmm.driver import Driver, Page, Stream
from vmm.host import HostDriver, host_buffer

WARM = 2
"""Rounds at the beginning that are not counted."""

Seconds = dict[str, list[float]]


class Direction:
    """One direction of the link: host memory, mapped device memory, and a stream of its own.

    Each copy starts behind the previous one, so that no copy is served from a processor's cache.
    """

    def __init__(self, driver: Driver, nbytes: int, *, to_device: bool) -> None:
        size = align_up(nbytes, driver.page_bytes)
        self._size, self._next = size, 0
        self._driver, self._host = driver, host_buffer(size, driver.host_node)
        driver.pin(self._host.address, size)
        device = driver.reserve(size)
        driver.map(device, driver.create(size // driver.page_bytes))
        self.stream: Stream = driver.stream()
        ends = device, self._host.address
        self._dst, self._src = ends if to_device else ends[::-1]
        self.copy(size)  # first touch
        self.stream.synchronize()

    def copy(self, nbytes: int) -> None:
        """Enqueue a copy of `nbytes` that were not copied recently."""
        start = self._next if self._next + nbytes <= self._size else 0
        self.stream.copy(self._dst + start, self._src + start, nbytes)
        self._next = start + nbytes

    def close(self) -> None:
        self.stream.close()
        self._driver.unpin(self._host.address)
        self._host.close()


def copies(driver: Driver, sizes: list[int], span: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Seconds of copies of each size, alone and in both directions, spread over `span` bytes each
    way.
    """
    with ExitStack() as open_ways:
        ways = [
            Direction(driver, max(span, *sizes), to_device=direction) for direction in (True, False)
        ]
        for way in ways:
            open_ways.callback(way.close)
        for size in sizes:
            taken: Seconds = {"one_way_s": [], "mixed_s": []}
            for number in range(WARM + rounds):
                one, both = _timed(ways[:1], size), _timed(ways, size)
                if number >= WARM:
                    taken["one_way_s"].append(one)
                    taken["mixed_s"].append(both)
            yield {"bytes": size, **taken}


def _timed(ways: list[Direction], nbytes: int) -> float:
    start = time.perf_counter()
    for way in ways:
        way.copy(nbytes)
    for way in ways:
        way.stream.synchronize()
    return time.perf_counter() - start


def pages(driver: Driver, counts: list[int], rounds: int) -> Iterator[dict[str, Any]]:
    """Seconds of each operation, for each number of pages."""
    address = driver.reserve(max(counts) * driver.page_bytes)
    for count in counts:
        taken: Seconds = {f"{act}_s": [] for act in ("create", "map", "clear", "unmap", "release")}
        for number in range(WARM + rounds):
            for act, seconds in _acts(driver, address, count).items():
                if number >= WARM:
                    taken[f"{act}_s"].append(seconds)
        yield {"pages": count, **taken}
    driver.unreserve(address)


def _acts(driver: Driver, address: int, count: int) -> dict[str, float]:
    nbytes, made, taken = count * driver.page_bytes, list[Page](), {}
    acts: dict[str, Callable[[], None]] = {
        "create": lambda: made.extend(driver.create(count)),
        "map": lambda: driver.map(address, made),
        "clear": lambda: driver.fill(address, 0, nbytes),
        "unmap": lambda: driver.unmap(address, nbytes),
        "release": lambda: driver.release(made),
    }
    for name, act in acts.items():
        start = time.perf_counter()
        act()
        taken[name] = time.perf_counter() - start
    return taken


@contextmanager
def _driver(asked: Mapping[str, Any]) -> Iterator[Driver]:
    if asked["kind"] == "cuda":
        from vmm.cuda import CudaDriver

        with CudaDriver(asked["page"], device=asked["index"]) as gpu:
            yield gpu
        return
    with HostDriver(asked["page"], copy_bytes_per_s=asked["copy_bytes_per_s"]) as host:
        yield host


def measure(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Measurements of copies and pages. Raises `VmmError` if there is no such device."""
    with _driver(asked) as driver:
        return {
            "page_bytes": driver.page_bytes,
            "pages": list(pages(driver, asked["counts"], asked["rounds"])),
            "copies": list(copies(driver, asked["sizes"], asked["span"], asked["rounds"])),
        }


if __name__ == "__main__":
    answer({"measure": measure})
