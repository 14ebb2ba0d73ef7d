"""Moves of memory that an engine's scheduler orders and its worker carries out: the books of both
must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirage.control.engine.extent_book import Extent, ExtentBook
from mirage.control.engine.fence import Fence
from mirage.control.engine.orders import (
    Done,
    MapExtents,
    MemoryAnswer,
    MemoryOrders,
    SetParameters,
    UnmapExtents,
)
from mirage.control.engine.pace import Pace
from mirage.control.engine.reconcile import Reconciler
from mirage.geometry import asleep_bytes, footprint
from mirage.protocol import Allotment, ModelShape
from tests.examples import examples

pytestmark = pytest.mark.pure

LAYERS, EXTENTS, START = 6, 16, 6
SHAPE = ModelShape(
    LAYERS,
    30,
    7,
    10,
    1,
    16,
    EXTENTS,
    1,
    LAYERS,
    movable_experts=2,
    expert_layers=LAYERS,
    expert_bytes=10,
)


class Lost(Exception):
    """Error of a device that has failed and cannot be used any more."""


class Blocks:
    """KV blocks of one extent each, which exist only in the extent book; `used` are those of
    requests.
    """

    def __init__(self) -> None:
        self.book = ExtentBook(EXTENTS, 1, START)
        self.used: set[int] = set()

    def add(self, extents: Sequence[int]) -> None:
        self.book.add(extents)

    def to_retire(self, count: int) -> list[int]:
        return self.book.to_retire(count, lambda extent: (0, 0))

    def retire(self, extents: Sequence[int]) -> None:
        self.book.retire(extents)

    def call_back(self, count: int) -> int:
        return len(self.book.call_back(count))

    def extents(self, *states: Extent) -> set[int]:
        return {extent for extent, state in enumerate(self.book.state) if state in states}

    def free(self) -> set[int]:
        return self.extents(Extent.USABLE) - self.used - {0}

    def start(self, block: int) -> None:
        self.book.take([block])
        self.used.add(block)

    def finish(self, block: int) -> None:
        self.book.free([block])
        self.used.remove(block)


class CountingHands:
    """A worker that moves no memory but counts it. An action that real memory could not carry out
    is an error.
    """

    def __init__(self) -> None:
        self.mapped = set(range(START))
        self.layers_remapped = self.stream_slots = self.experts = 0
        self.grant = footprint(SHAPE, 0, START)
        self.capacity = 1 << 30
        """Bytes that the device can give, whatever was granted."""
        self.fails = False
        self.error: Exception | None = None
        self.touched: set[int] = set()
        """Extents of steps in flight."""
        self.emptied: set[int] = set()
        self.orders: list[MemoryOrders] = []

    @property
    def held(self) -> int:
        return footprint(SHAPE, self.layers_remapped, len(self.mapped), self.experts)

    def obey(self, orders: MemoryOrders) -> MemoryAnswer:
        done: list[Done] = []
        if orders.epoch and self.error is None:
            assert orders.epoch == len(self.orders) + 1
            self.orders.append(orders)
            try:
                self._carry_out(orders, done)
            except Exception as error:
                self.error = error
        held = self.layers_remapped, self.stream_slots, self.experts, len(self.mapped), self.held
        return MemoryAnswer(orders.epoch, *held, tuple(done), self.error)

    def _carry_out(self, orders: MemoryOrders, done: list[Done]) -> None:
        self.grant = self.grant if orders.grant_bytes is None else orders.grant_bytes
        self.emptied.update(orders.emptied)
        for action in orders.actions:
            if self.fails:
                raise Lost
            done.append(Done(self._act(action), 1.0))

    def _act(self, action: SetParameters | MapExtents | UnmapExtents) -> int:
        match action:
            case SetParameters(layers_remapped, stream_slots, experts, takes):
                before, kv = self.held, len(self.mapped) * SHAPE.extent_bytes
                wanted = footprint(SHAPE, layers_remapped, 0, experts) + kv
                assert wanted <= max(before, self.grant), "taken, and not granted"
                assert takes or wanted <= before, "who takes has to say so"
                if takes and wanted > max(before, self.capacity):
                    return 0
                self.layers_remapped, self.stream_slots, self.experts = (
                    layers_remapped,
                    stream_slots,
                    experts,
                )
                return 1
            case UnmapExtents(extents):
                assert set(extents) <= self.mapped and not set(extents) & self.touched
                assert set(extents) <= self.emptied, "rows may name them"
                self.mapped -= set(extents)
                return len(extents)
            case MapExtents(extents):
                assert not set(extents) & self.mapped
                room = max(0, self.capacity - self.held) // SHAPE.extent_bytes
                had = extents[:room]
                self.mapped |= set(had)
                assert self.held <= self.grant, "taken, and not granted"
                return len(had)


class BooksAndHands(RuleBasedStateMachine):
    """Allotments, rounds, requests and steps in any order, on a device that at times refuses
    memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.hands, self.fence = Blocks(), CountingHands(), Fence()
        self.stepping = False
        clock = partial(next, count(step=60.0))  # nothing is waited for
        pace = Pace(2.5, lambda: self.stepping)
        self.reconciler = Reconciler(self.hands, SHAPE, self.blocks, self.fence, clock, pace=pace)
        self.revision = 0
        self.flights: list[set[int]] = []

    alive = precondition(lambda self: self.hands.error is None)

    @alive
    @rule(
        layers_remapped=st.integers(0, 3),
        stream_slots=st.integers(1, 2),
        extents=st.integers(1, EXTENTS),
        experts=st.integers(0, 2),
        recall=st.booleans(),
    )
    def allot(
        self, layers_remapped: int, stream_slots: int, extents: int, experts: int, recall: bool
    ) -> None:
        self.revision += 1
        experts = 0 if layers_remapped else experts
        grant = footprint(SHAPE, layers_remapped, extents, experts)
        sent = Allotment(
            self.revision,
            layers_remapped,
            stream_slots if layers_remapped else 0,
            extents,
            grant,
            None,
            recall,
            experts,
        )
        self.ending(lambda: self.reconciler.aim(sent))
        assert self.hands.error is not None or self.hands.grant == grant

    @alive
    @rule()
    def sleep(self) -> None:
        self.revision += 1
        grant = asleep_bytes(SHAPE)
        sent = Allotment(self.revision, LAYERS, 0, 1, grant, asleep=True)
        self.ending(lambda: self.reconciler.aim(sent))
        assert self.reconciler.rests

    @alive
    @rule()
    def reconcile(self) -> None:
        before, told = self.state(), len(self.hands.orders)
        self.ending(self.reconciler.reconcile)
        if self.hands.error is None and len(self.hands.orders) == told:
            assert self.state() == before, "nothing moves without orders"

    def ending(self, call: object) -> None:
        """Context for a call after which the engine may have ended: the error `Lost` is allowed if
        the device has failed, and no other exception.
        """
        try:
            call()  # type: ignore[operator]
        except Lost:
            assert self.hands.fails

    @rule(stepping=st.booleans())
    def requests_wait_for_a_step(self, stepping: bool) -> None:
        self.stepping = stepping

    @rule(spare=st.integers(0, 60))
    def device_is_short(self, spare: int) -> None:
        self.hands.capacity = self.hands.held + spare

    @rule()
    def device_has_enough(self) -> None:
        self.hands.capacity = 1 << 30

    @precondition(lambda self: self.blocks.free())
    @rule()
    def start(self) -> None:
        self.blocks.start(min(self.blocks.free()))

    @precondition(lambda self: self.blocks.used)
    @rule(which=st.integers(0, 100))
    def finish(self, which: int) -> None:
        self.blocks.finish(sorted(self.blocks.used)[which % len(self.blocks.used)])

    @precondition(lambda self: len(self.flights) < 2 and not self.reconciler.rests)
    @rule()
    def schedule(self) -> None:
        self.fence.scheduled += 1
        self.flights.append(set(self.blocks.used))
        self.hands.touched = set().union(*self.flights)

    @precondition(lambda self: self.flights)
    @rule()
    def process(self) -> None:
        self.flights.pop(0)
        self.fence.processed += 1
        self.hands.touched = set().union(*self.flights)

    @alive
    @precondition(lambda self: self.revision > 2)
    @rule()
    def the_device_fails(self) -> None:
        self.hands.fails = True

    def state(self) -> tuple[object, ...]:
        hands = self.hands
        return hands.layers_remapped, hands.stream_slots, hands.experts, frozenset(hands.mapped)

    @invariant()
    def books_are_what_the_hands_hold(self) -> None:
        if self.hands.error is not None:
            assert isinstance(self.hands.error, Lost), self.hands.error
            return
        books = self.reconciler.books
        assert (books.layers_remapped, books.stream_slots, books.experts) == self.state()[:3]
        assert self.blocks.extents(Extent.USABLE, Extent.RETIRING) == self.hands.mapped
        assert not books.mapping
        assert books.held_bytes == self.reconciler.held_bytes == self.hands.held
        assert self.blocks.used <= self.hands.mapped
        assert not (self.flights and books.absent), "a step in flight reads all layers"
        assert not books.absent or self.reconciler.rests

    def teardown(self) -> None:
        """At the end no request runs and the device has enough memory: the engine comes to hold
        exactly its allotment.
        """
        if self.hands.fails or not self.revision:
            return
        self.device_has_enough()
        self.stepping = False
        while self.blocks.used:
            self.finish(0)
        while self.flights:
            self.process()
        for _ in range(2 * EXTENTS):
            self.reconciler.reconcile()
        assert self.reconciler.reconciled
        assert self.hands.held == self.hands.grant


TestBooksAndHands = BooksAndHands.TestCase
TestBooksAndHands.settings = examples(150, stateful_step_count=40)


def made() -> tuple[Reconciler, CountingHands, Blocks, Fence]:
    hands, blocks, fence = CountingHands(), Blocks(), Fence()
    clock = partial(next, count(step=60.0))
    return Reconciler(hands, SHAPE, blocks, fence, clock), hands, blocks, fence


def allotment(revision: int, layers_remapped: int, extents: int) -> Allotment:
    return Allotment(
        revision,
        layers_remapped,
        min(layers_remapped, 1),
        extents,
        footprint(SHAPE, layers_remapped, extents),
    )


def test_a_round_is_one_order_that_gives_before_it_takes() -> None:
    reconciler, hands, _, _ = made()
    assert reconciler.aim(allotment(1, 2, START + 6))
    (orders,) = hands.orders
    assert orders.epoch == 1 and orders.grant_bytes == footprint(SHAPE, 2, START + 6)
    kinds = [type(action) for action in orders.actions]
    assert kinds == [SetParameters, MapExtents]
    assert not reconciler.reconcile() and len(hands.orders) == 1, "nothing is left to order"


def test_what_was_emptied_is_told_before_its_memory_goes() -> None:
    reconciler, hands, _, fence = made()
    fence.scheduled = 1
    reconciler.aim(allotment(1, 0, START - 2))
    assert hands.orders[-1].emptied == (5, 4) and not hands.orders[-1].actions
    assert not reconciler.reconcile() and len(hands.orders) == 1, "it is told once"
    fence.processed = 1
    assert reconciler.reconcile()
    assert hands.orders[-1].actions == (UnmapExtents((5, 4)),)
    assert reconciler.reconciled and hands.mapped == set(range(START - 2))


def test_an_engine_falls_asleep_with_one_order_once_no_step_is_in_flight() -> None:
    reconciler, hands, blocks, fence = made()
    blocks.start(3)
    fence.scheduled = 1
    assert reconciler.aim(Allotment(1, LAYERS, 0, 1, asleep_bytes(SHAPE), asleep=True))
    assert not hands.orders[-1].actions and reconciler.rests and not reconciler.asleep
    fence.processed = 1
    reconciler.reconcile()
    kinds = [type(action) for action in hands.orders[-1].actions]
    assert kinds == [SetParameters, UnmapExtents] and hands.mapped == {0, 3}
    blocks.finish(3)
    reconciler.reconcile()
    assert reconciler.asleep and hands.held == asleep_bytes(SHAPE)


def test_an_error_that_is_answered_is_raised_and_nothing_is_usable_that_was_ordered() -> None:
    reconciler, hands, blocks, _ = made()
    hands.fails = True
    with pytest.raises(Lost):
        reconciler.aim(allotment(1, 2, START + 6))
    assert blocks.extents(Extent.USABLE) == set(range(START))


def test_hands_that_hold_other_extents_than_the_books_end_the_engine() -> None:
    reconciler, hands, _, _ = made()
    hands.mapped.remove(3)
    with pytest.raises(RuntimeError, match="5 KV extents have memory, and 6 by the books"):
        reconciler.aim(allotment(1, 0, START))
