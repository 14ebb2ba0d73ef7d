"""An engine's grant on a GPU that lacks granted memory: calls to the driver, and memory got.

The driver is the stand-in, which counts calls. No round ends the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import tiny  # noqa: F401  (sets vLLM's environment before it is imported)
from vllm.v1.core.block_pool import BlockPool

from mirage.control.engine.extent_book import ExtentBook
from mirage.control.engine.fence import Fence
from mirage.control.engine.reconcile import Reconciler
from mirage.engine import backend
from mirage.engine.blockpool import ElasticBlocks
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.memory_worker import MemoryWorker
from mirage.protocol import Allotment, ModelShape
from tests.settings import engine_settings
from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda import StandIn
from tests.vmm.libcuda.engines import over_standin
from vmm.space import ExtentMap, Range

pytestmark = pytest.mark.engine
PAGE, EXTENT_PAGES = 65536, 4
EXTENT = EXTENT_PAGES * PAGE
EXTENTS, START, WANTED = 32, 2, 22
SHAPE = ModelShape(0, 0, 0, EXTENT, 1, 16, EXTENTS, 1, 0)
DEVICE_PAGES = 51
"""Pages of the device: 12 extents, and 3 pages of another one."""


class Engine:
    """The KV cache of an engine whose device has less memory than its grant."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory, self.now = memory, 0.0
        self.extents = ExtentMap(
            Range(memory.driver, EXTENTS * EXTENT), memory.pool, [0], EXTENT, EXTENTS
        )
        memory.kv = SimpleNamespace(extents=self.extents)  # type: ignore[assignment]
        self.extents.map(range(START))
        pool = BlockPool(EXTENTS, enable_caching=True, hash_block_size=16)
        self.blocks = ElasticBlocks(pool, ExtentBook(EXTENTS, 1, START))
        self.uncached = 0
        memory.uncache = self.uncache  # type: ignore[method-assign]
        worker = MemoryWorker(memory)
        self.reconciler = Reconciler(worker, SHAPE, self.blocks, Fence(), lambda: self.now)

    def uncache(self) -> None:
        self.uncached += 1

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.reconciler.reconcile()
            self.now += 0.005


@pytest.fixture
def standin() -> Iterator[StandIn]:
    made = loaded()
    yield made
    made.reset()


@pytest.fixture
def engine(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    settings = engine_settings(base_blocks=START, page=PAGE)
    monkeypatch.setattr(backend, "_host", lambda s: over_standin(s, DEVICE_PAGES * PAGE))
    before = backend.torch
    memory = DeviceMemory(settings)
    yield Engine(memory)
    memory.driver.close()
    backend.torch = before


def test_what_the_device_has_is_kept_and_the_rest_is_asked_for_seldom(
    engine: Engine, standin: StandIn
) -> None:
    before = standin.calls()
    engine.reconciler.aim(Allotment(1, 0, 1, WANTED, WANTED * EXTENT))
    assert len(engine.extents.mapped) == DEVICE_PAGES // EXTENT_PAGES
    engine.rounds(10)
    calls = {name: count - before.get(name, 0) for name, count in standin.calls().items()}
    # All that there is; the refused one, and once more what is left when torch was asked.
    there = DEVICE_PAGES - START * EXTENT_PAGES
    assert calls["cuMemCreate"] <= there + 3 * EXTENT_PAGES
    assert calls["cuMemRelease"] <= 2 * EXTENT_PAGES, "less than an extent at each try"
    assert engine.uncached == 1
    engine.extents.check_integrity()
    assert engine.memory.driver.used_bytes() == len(engine.extents.mapped) * EXTENT


def test_for_as_long_as_it_lasts_nothing_storms(engine: Engine, standin: StandIn) -> None:
    engine.reconciler.aim(Allotment(1, 0, 1, WANTED, WANTED * EXTENT))
    before = standin.calls()["cuMemCreate"]
    engine.rounds(4000)  # twenty seconds
    assert standin.calls()["cuMemCreate"] - before < 100
    assert engine.uncached == 1


def test_it_has_all_of_it_once_the_device_does(engine: Engine, standin: StandIn) -> None:
    engine.reconciler.aim(Allotment(1, 0, 1, WANTED, WANTED * EXTENT))
    engine.reconciler.aim(Allotment(2, 0, 1, 4, 4 * EXTENT))
    engine.rounds(2)
    assert len(engine.extents.mapped) == 4
    engine.reconciler.aim(Allotment(3, 0, 1, 12, 12 * EXTENT))
    engine.rounds(1000)
    assert engine.reconciler.reconciled and engine.uncached == 1


@pytest.mark.parametrize("call", ["cuMemMap", "cuMemSetAccess", "cuMemsetD8Async"])
def test_a_device_that_cannot_map_what_it_has_ends_no_engine(
    engine: Engine, standin: StandIn, call: str
) -> None:
    for _ in range(2):
        standin.fail(1, call, 2)
    engine.reconciler.aim(Allotment(1, 0, 1, 12, 12 * EXTENT))
    engine.rounds(1000)
    assert engine.reconciler.reconciled
    engine.memory.check_integrity()
