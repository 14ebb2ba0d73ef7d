"""KV blocks are copied to the pool's memory and back unchanged, over every driver."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator

import pytest

from mirage.engine.tiers.copier import Copier, CopyJob
from mirage.streaming.compute import StreamCompute
from mirage.tiers.contract import BlockPlace, Medium
from vmm import Driver, HostDriver

pytestmark = pytest.mark.vmm

BLOCKS, LAYERS, BYTES = 16, 3, 4096


class Below:
    """Blocks in `LAYERS` runs of a device range, and the memory of a pool beside them."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.run = driver, BLOCKS * BYTES
        self.nbytes = -(-LAYERS * self.run // driver.page_bytes) * driver.page_bytes
        self.device = driver.reserve(self.nbytes + driver.page_bytes)  # the last page is unmapped
        self.pages = driver.create(self.nbytes // driver.page_bytes)
        driver.map(self.device, self.pages)
        self.memory = (ctypes.c_char * (BLOCKS * LAYERS * BYTES))()
        driver.pin(ctypes.addressof(self.memory), len(self.memory))
        stream = driver.stream()
        compute = StreamCompute(lambda: stream, stream.synchronize, driver.event)
        self.copier = Copier(driver, compute, self.runs, self.address)
        self.lost = False

    def runs(self, block: int) -> list[tuple[int, int]]:
        starts = (self.device + layer * self.run for layer in range(LAYERS))
        return [(start + block * BYTES, BYTES) for start in starts]

    def address(self, place: BlockPlace) -> int:
        if self.lost:
            raise KeyError(place)
        return ctypes.addressof(self.memory) + place.offset

    def place(self, number: int) -> BlockPlace:
        return BlockPlace(Medium.HOST, number * LAYERS * BYTES)

    def fill(self, block: int, byte: int) -> None:
        for address, nbytes in self.runs(block):
            self.driver.fill(address, byte, nbytes)

    def read(self, block: int) -> set[int]:
        """Bytes that occur in a block of the device, copied out through the pool's last place."""
        found: set[int] = set()
        for address, nbytes in self.runs(block):
            at = (BLOCKS - 1) * LAYERS * BYTES
            self.driver.copy(ctypes.addressof(self.memory) + at, address, nbytes)
            found |= set(bytes(self.memory[at : at + nbytes]))
        return found

    def close(self) -> None:
        self.copier.close()
        self.driver.unpin(ctypes.addressof(self.memory))
        self.driver.unmap(self.device, self.nbytes)
        self.driver.release(self.pages)
        self.driver.unreserve(self.device)


@pytest.fixture
def below(driver: Driver) -> Iterator[Below]:
    made = Below(driver)
    yield made
    made.close()


def done(below: Below, *, up: bool) -> list[CopyJob]:
    below.copier.wait(up=up)
    return below.copier.finished(up=up)


def test_blocks_come_back_elsewhere(below: Below) -> None:
    places = random.Random(1).sample(range(BLOCKS - 1), 6)
    for block in range(6):
        below.fill(block, block + 1)
    down = CopyJob(False, range(6), [below.place(number) for number in places])
    below.copier.submit(down)
    assert done(below, up=False) == [down] and not down.failed
    up = CopyJob(True, range(8, 14), down.places)
    below.copier.submit(up)
    assert done(below, up=True) == [up] and not up.failed
    assert [below.read(block) for block in range(8, 14)] == [{n + 1} for n in range(6)]


def test_nothing_moves_before_the_pump(below: Below) -> None:
    below.copier.submit(CopyJob(False, [0], [below.place(0)]))
    assert below.copier.finished(up=False) == []
    assert bytes(below.memory) == bytes(len(below.memory))


def test_a_portion_is_what_the_link_has_left(below: Below) -> None:
    job = CopyJob(False, range(5), [below.place(number) for number in range(5)])
    below.copier.submit(job)
    below.copier.pump(0)
    assert job.issued == 1
    below.copier.pump(2 * LAYERS * BYTES)
    assert job.issued == 3
    below.copier.pump()
    assert job.issued == 5


def test_loads_go_first(below: Below) -> None:
    down = CopyJob(False, [0, 1], [below.place(0), below.place(1)])
    up = CopyJob(True, [2, 3], [below.place(2), below.place(3)])
    below.copier.submit(down)
    below.copier.submit(up)
    below.copier.pump(2 * LAYERS * BYTES)
    assert up.issued == 2


def test_loads_that_always_wait_keep_no_store_from_its_end(below: Below) -> None:
    down = CopyJob(False, [0, 1], [below.place(0), below.place(1)])
    up = CopyJob(True, range(2, 6), [below.place(number) for number in range(2, 6)])
    below.copier.submit(down)
    below.copier.submit(up)
    issued = []
    for _ in range(3):
        below.copier.pump(0)
        issued.append((up.issued, down.issued))
    assert issued == [(1, 1), (2, 2), (3, 2)]


def test_a_wait_for_stores_leaves_loads_to_the_link(below: Below) -> None:
    down = CopyJob(False, [0, 1], [below.place(0), below.place(1)])
    up = CopyJob(True, [2, 3], [below.place(2), below.place(3)])
    below.copier.submit(up)
    below.copier.submit(down)
    assert done(below, up=False) == [down]
    assert (up.issued, down.issued) == (0, 2)
    assert done(below, up=True) == [up]


def test_of_loads_those_of_the_nearest_request_go_first(below: Below) -> None:
    first = CopyJob(True, [0, 1], [below.place(0), below.place(1)], rank=1)
    urgent = CopyJob(True, [2, 3], [below.place(2), below.place(3)], rank=0)
    below.copier.submit(first)
    below.copier.pump(0)
    below.copier.submit(urgent)
    below.copier.pump(2 * LAYERS * BYTES)
    assert (urgent.issued, first.issued) == (2, 1)


def test_a_failed_job_ends_alone(below: Below) -> None:
    below.lost = True
    lost = CopyJob(True, [0], [below.place(0)])
    below.copier.submit(lost)
    assert done(below, up=True) == [lost] and lost.failed
    below.lost = False
    below.fill(1, 7)
    down = CopyJob(False, [1], [below.place(1)])
    up = CopyJob(True, [2], [below.place(1)])
    below.copier.submit(down)
    assert done(below, up=False) == [down] and not down.failed
    below.copier.submit(up)
    assert done(below, up=True) == [up] and not up.failed
    assert below.read(2) == {7}


def test_a_stream_that_failed_is_replaced() -> None:
    with HostDriver(page_bytes=65536) as driver:
        below = Below(driver)
        real = below.runs
        below.copier._runs = lambda block: [(below.device + below.nbytes, BYTES)]
        bad = CopyJob(False, [0], [below.place(0)])
        below.copier.submit(bad)
        assert done(below, up=False) == [bad] and bad.failed
        below.copier._runs = real
        good = CopyJob(False, [0], [below.place(0)])
        below.copier.submit(good)
        assert done(below, up=False) == [good] and not good.failed
        below.close()
