"""Steps to an allotment on real memory: allotments, requests and steps in any order.

Checked after every event are the design's invariants: KV memory, resident layers, slots and free
pages sum to the grant; no page has two roles; a block in the free queue is mapped; nothing is
unmapped that a step in flight may use. A step that is processed really writes its blocks and reads
its layers.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import pytest
from host_memory import EXTENTS, LAYER_BYTES, LAYERS, PAGE, SHAPE, START, HostMemory, grant_of
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirage.control.engine.extent_book import Extent
from mirage.control.engine.fence import Fence
from mirage.control.engine.pace import Pace
from mirage.control.engine.reconcile import Reconciler
from mirage.geometry import asleep_bytes
from mirage.protocol import Allotment
from tests.examples import examples
from vmm.host import HostDriver

pytestmark = pytest.mark.engine


class SettlementMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.host = HostMemory()
        self.memory, self.blocks = self.host.memory, self.host.blocks
        self.pool = self.host.pool
        self.range, self.extents = self.host.range, self.host.extents
        self.fence = Fence()
        self.stepping = False
        # One thing a round: nothing is ever as fast as that.
        pace = Pace(1e-9, lambda: self.stepping)
        # Nothing is waited for: each look at the clock is a minute later.
        clock = partial(next, count(step=60))
        self.reconciler = Reconciler(
            self.host.worker, SHAPE, self.blocks, self.fence, clock, pace=pace
        )
        self.revision = 0
        self.grant = self.ceiling = grant_of(0, START)
        self.requests: list[list[Any]] = []
        self.in_flight: list[set[int]] = []

    # -- events -------------------------------------------------------------------------

    @rule(
        remapped=st.integers(0, 3),
        slots=st.integers(1, 2),
        extents=st.integers(1, EXTENTS),
        recall=st.booleans(),
    )
    def allot(self, remapped: int, slots: int, extents: int, recall: bool) -> None:
        self.revision += 1
        self.ceiling = max(self.held(), grant_of(remapped, extents))
        self.grant = grant_of(remapped, extents)
        sent = Allotment(self.revision, remapped, slots, extents, self.grant, None, recall)
        assert self.reconciler.aim(sent)
        assert not self.reconciler.aim(Allotment(self.revision, 0, 1, EXTENTS, 1 << 40))

    @rule()
    def sleep(self) -> None:
        self.revision += 1
        self.grant = asleep_bytes(SHAPE)
        self.ceiling = max(self.held(), self.grant)
        sent = Allotment(self.revision, LAYERS, 0, 1, self.grant, asleep=True)
        assert self.reconciler.aim(sent) and self.reconciler.rests

    @precondition(lambda self: self.reconciler.rests and not self.in_flight)
    @rule()
    def fall_asleep(self) -> None:
        """If the allotment says asleep, preempt all requests. The engine then holds only the memory
        of a sleeping one.
        """
        if not self.reconciler.target.asleep:
            return
        while self.requests:
            self.finish(0)
        self.stepping = False
        for _ in range(2):
            self.reconciler.reconcile()
        assert self.reconciler.asleep and self.held() == asleep_bytes(SHAPE)
        assert self.host.worker.times.sleep_s > 0

    @rule()
    def reconcile(self) -> None:
        remapped, extents = self.memory.layers_remapped, set(self.extents.mapped)
        rested = self.reconciler.rests
        self.reconciler.reconcile()
        if self.stepping and not rested:
            moved = abs(self.memory.layers_remapped - remapped) + len(
                extents ^ set(self.extents.mapped)
            )
            assert moved <= 1

    @rule(stepping=st.booleans())
    def requests_wait_for_a_step(self, stepping: bool) -> None:
        self.stepping = stepping

    @rule(pages=st.integers(0, 4))
    def device_is_short(self, pages: int) -> None:
        """Let the device have only `pages` more pages, because another process has memory that was
        granted.
        """
        driver = self.memory.driver
        assert isinstance(driver, HostDriver)
        driver.capacity_bytes = driver.used_bytes() + pages * PAGE

    @rule()
    def device_has_enough(self) -> None:
        assert isinstance(self.memory.driver, HostDriver)
        self.memory.driver.capacity_bytes = 1 << 30

    @rule(count=st.integers(1, 5))
    def start(self, count: int) -> None:
        if count <= self.pool.get_num_free_blocks():
            self.requests.append(self.pool.get_new_blocks(count))

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 100))
    def finish(self, which: int) -> None:
        self.pool.free_blocks(self.requests.pop(which % len(self.requests)))

    @precondition(lambda self: self.reconciler.exceeded)
    @rule()
    def preempt(self) -> None:
        """Preempt the newest requests until the others fit a recall. Soon after, no more extents
        are held than it allows.
        """
        while self.reconciler.exceeded:
            self.pool.free_blocks(self.requests.pop())
        while self.in_flight:
            self.process()
        self.stepping = False
        for _ in range(2):
            self.reconciler.reconcile()
        assert self.reconciler.target is not None
        assert self.blocks.book.backed_extents() <= self.reconciler.target.kv_extents

    @precondition(lambda self: len(self.in_flight) < 2 and not self.reconciler.rests)
    @rule()
    def schedule(self) -> None:
        self.fence.scheduled += 1
        self.in_flight.append({block.block_id for blocks in self.requests for block in blocks})

    @precondition(lambda self: self.in_flight)
    @rule()
    def process(self) -> None:
        for block in self.in_flight.pop(0):
            self.range.tensor(block * PAGE, PAGE).fill_(7)
        assert self.memory.streamer is not None
        for layer in self.memory.streamer.layers:
            self.memory.streamer.before(layer.index)
            values = layer.range.tensor(0, LAYER_BYTES)
            assert int(values.min()) == int(values.max()) == layer.index + 1
            self.memory.streamer.after(layer.index)
        self.fence.processed += 1

    @precondition(
        lambda self: self.requests and len(self.in_flight) < 2 and not self.reconciler.rests
    )
    @rule(extents=st.integers(1, EXTENTS))
    def the_last_request_ends_under_a_step_and_less_is_allotted(self, extents: int) -> None:
        """End all requests while a step is in flight, and allot less. Blocks that the step still
        writes are then free and not wanted, which is rare by chance.
        """
        self.schedule()
        while self.requests:
            self.finish(0)
        self.allot(0, 1, extents, False)

    # -- what always holds --------------------------------------------------------------

    def held(self) -> int:
        return self.memory.pool.held_bytes

    @invariant()
    def sound(self) -> None:
        self.memory.check_integrity()
        self.blocks.check_integrity()

    @invariant()
    def pages_add_up(self) -> None:
        assert not (self.in_flight and self.memory.layers_remapped == LAYERS), (
            "a step reads all layers"
        )
        layers = (LAYERS - self.memory.layers_remapped) * LAYER_BYTES
        assert self.memory.pool.in_use_bytes == layers + len(self.extents.mapped) * PAGE
        assert self.memory.pool.in_use_bytes <= self.held()
        self.ceiling = max(self.grant, min(self.ceiling, self.held()))
        assert self.held() <= self.ceiling

    @invariant()
    def blocks_that_can_be_had_are_mapped(self) -> None:
        state = self.blocks.book.state
        backed = {e for e in range(EXTENTS) if state[e] is not Extent.UNMAPPED}
        assert backed == set(self.extents.mapped)

    @invariant()
    def steps_in_flight_find_their_blocks(self) -> None:
        for touched in self.in_flight:
            assert touched <= set(self.extents.mapped)

    def teardown(self) -> None:
        """At the end no request runs and the device has enough memory: the engine holds exactly its
        allotment.
        """
        self.device_has_enough()
        self.stepping = False
        while self.requests:
            self.finish(0)
        while self.in_flight:
            self.process()
        for _ in range(2 * EXTENTS):
            self.reconciler.reconcile()
        assert self.reconciler.reconciled
        if self.revision:
            assert self.held() == self.grant
        self.host.close()


def test_an_extent_stays_until_the_step_that_touches_it_is_processed() -> None:
    machine = SettlementMachine()
    try:
        machine.start(START - 1)
        machine.schedule()
        machine.schedule()
        machine.finish(0)
        machine.allot(0, 1, 1, False)
        for _ in range(2):
            machine.reconcile()
            assert set(machine.extents.mapped) == set(range(START)), "a step in flight writes them"
            machine.process()
        machine.reconcile()
        assert set(machine.extents.mapped) == {0}
    finally:
        machine.teardown()


def test_a_device_that_is_short_is_asked_seldom_and_what_it_has_is_had() -> None:
    """A device has three pages of the eight that are granted. These are taken at once, torch is
    asked once to free its cache, and the device is then asked only now and then.
    """
    host, now, uncached = HostMemory(), [0.0], list[int]()
    try:
        blocks, fence = host.blocks, Fence()
        reconciler = Reconciler(host.worker, SHAPE, blocks, fence, lambda: now[0])
        host.memory.uncache = lambda: uncached.append(1)  # type: ignore[method-assign]
        driver: Any = host.memory.driver
        create, created = driver.create_most, list[int]()

        def counted(pages: int) -> list[Any]:
            created.append(pages)
            return list(create(pages))

        driver.create_most = counted
        driver.capacity_bytes = driver.used_bytes() + 3 * PAGE
        wanted = Allotment(1, 0, 1, START + 8, grant_of(0, START + 8), None, False)
        reconciler.aim(wanted)
        assert blocks.book.backed_extents() == START + 3, "all that there was, at once"
        for _ in range(10):
            reconciler.reconcile()
        assert (created, uncached) == ([8, 5], [1])
        for _ in range(2000):
            now[0] += 0.01
            reconciler.reconcile()
        assert len(created) < 30 and sum(created) < 50 and uncached == [1]
        driver.capacity_bytes = 1 << 30
        for _ in range(300):
            now[0] += 0.01
            reconciler.reconcile()
        assert reconciler.reconciled
    finally:
        host.close()


TestSettlement = SettlementMachine.TestCase
TestSettlement.settings = examples(
    60, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
