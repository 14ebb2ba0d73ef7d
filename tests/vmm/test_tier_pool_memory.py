"""Host memory of a pool of which no slab can be locked: only copied ranges are, and
none at holes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from mirage.engine.tiers.copier import Copier, CopyJob
from mirage.engine.tiers.pool_memory import PoolMemory
from mirage.streaming.compute import StreamCompute
from mirage.tiers.contract import BlockPlace, Medium
from mirage.tiers.region import Region
from mirage.tiers.slabs import ByteRange
from tests.vmm.conftest import PAGE, PAGES
from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda import StandIn
from vmm import VmmError

pytestmark = pytest.mark.vmm
BLOCK, PLACES = 4 * 4096, 256


class PoolOf:
    """Stand-in for an engine's end of the pool, with the part that is used here."""

    def __init__(self) -> None:
        self.region = Region.create(PLACES * BLOCK)

    def memory(self, medium: Medium) -> memoryview:
        if medium is not Medium.HOST:
            raise KeyError(medium)
        return self.region.memory

    def locks(self) -> None:
        """Return None: there is no connection for locks, so no slab is locked."""


class World:
    """Four blocks on a GPU of the driver's stand-in, and a pool."""

    def __init__(self, standin: StandIn) -> None:
        from vmm.cuda import CudaDriver

        standin.reset(memory_bytes=PAGES * PAGE, granularity=PAGE)
        self.standin, self.driver = standin, CudaDriver(tensors_on="cpu")
        self.device = self.driver.reserve(PAGE)
        self.pages = self.driver.create(1)
        self.driver.map(self.device, self.pages)
        self.pool: Any = PoolOf()
        self.memory = PoolMemory(self.pool, self.driver, BLOCK)
        stream = self.driver.stream()
        self.stream = stream
        compute = StreamCompute(lambda: stream, stream.synchronize, self.driver.event)
        self.copier = Copier(
            self.driver,
            compute,
            lambda block: [(self.device + block * BLOCK, BLOCK)],
            self.memory.use,
            self.memory.let_go,
        )

    @property
    def locked(self) -> int:
        return sum(self.driver._pinned.values())

    def store(self, block: int, number: int) -> CopyJob:
        job = CopyJob(False, [block], [BlockPlace(Medium.HOST, number * BLOCK)])
        self.copier.submit(job)
        self.copier.pump()
        return job

    def close(self) -> None:
        self.copier.close()
        self.memory.close()
        assert self.locked == 0
        self.stream.close()
        self.driver.unmap(self.device, PAGE)
        self.driver.release(self.pages)
        self.driver.unreserve(self.device)
        self.driver.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World(loaded())
    yield made
    made.close()
    made.pool.region.close()


def test_only_what_is_copied_is_locked(world: World) -> None:
    first, second = world.store(0, 3), world.store(1, 200)
    assert world.locked == 2 * BLOCK
    world.copier.wait(up=False)
    assert world.copier.finished(up=False) == [first, second]
    assert not first.failed and world.locked == 0


def test_a_sparse_region_stays_sparse(world: World) -> None:
    world.driver.fill(world.device, 7, BLOCK)
    world.store(0, 100)
    world.copier.wait(up=False)
    world.copier.finished(up=False)
    assert world.pool.region.used_bytes() == BLOCK


def test_a_hole_is_punched_in_what_nobody_has_locked(world: World) -> None:
    """An engine stores a block, the pool punches a hole there, and another engine writes a new
    block to the same place. The first engine then reads the new block, because it has unlocked the
    old pages.
    """
    world.driver.fill(world.device, 7, BLOCK)
    world.store(0, 5)
    world.copier.wait(up=False)
    world.copier.finished(up=False)
    world.pool.region.punch(ByteRange(5 * BLOCK, BLOCK))
    assert world.pool.region.used_bytes() == 0
    os.pwrite(world.pool.region.fd, b"\x09" * BLOCK, 5 * BLOCK)  # another engine
    job = CopyJob(True, [1], [BlockPlace(Medium.HOST, 5 * BLOCK)])
    world.copier.submit(job)
    world.copier.wait(up=True)
    assert world.copier.finished(up=True) == [job] and not job.failed
    assert world.driver.tensor(world.device + BLOCK, BLOCK).eq(9).all()


def test_a_place_that_two_requests_load_is_locked_once(world: World) -> None:
    place = BlockPlace(Medium.HOST, 0)
    jobs = [CopyJob(True, [block], [place]) for block in (2, 3)]
    for job in jobs:
        world.copier.submit(job)
    world.copier.pump()
    assert world.locked == BLOCK
    world.copier.wait(up=True)
    assert world.copier.finished(up=True) == jobs and world.locked == 0


def test_a_job_that_failed_leaves_nothing_locked(world: World) -> None:
    job = CopyJob(False, [0, 1 << 20], [BlockPlace(Medium.HOST, 0), BlockPlace(Medium.HOST, BLOCK)])
    world.copier.submit(job)
    world.copier.pump()
    assert world.copier.finished(up=False) == [job] and job.failed
    assert world.locked == 0


def test_what_cannot_be_locked_is_said_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(address: int, nbytes: int) -> None:
        raise VmmError("no more")

    monkeypatch.setattr(world.driver, "pin", refuse)
    for number in (1, 2):
        world.memory.use(BlockPlace(Medium.HOST, number * BLOCK))
        world.memory.let_go(BlockPlace(Medium.HOST, number * BLOCK))
    assert len(caplog.records) == 1 and "unlocked" in caplog.text


def test_places_outside_are_refused(world: World) -> None:
    with pytest.raises(KeyError):
        world.memory.use(BlockPlace(Medium.HOST, PLACES * BLOCK))
    with pytest.raises(KeyError):
        world.memory.use(BlockPlace(Medium.PEER, 0))
