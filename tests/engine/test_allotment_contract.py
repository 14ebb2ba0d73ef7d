"""One contract for reaching an allotment: real memory and the simulator's model both keep it.

Extents have one block each, no step is in flight, and rounds are not bounded, so both count alike.
One difference is intended. A retiring real extent waits for the very requests that have blocks in
it, while blocks of other extents are given out. The simulator only counts blocks, as if those in
use were contiguous. With `recall` both choose anew which extents go.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import pytest
from host_memory import (
    EXPERTS,
    EXTENTS,
    LAYER_BYTES,
    LAYERS,
    PAGE,
    SHAPE,
    START,
    HostMemory,
    grant_of,
)
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mirage.control.engine.fence import Fence
from mirage.control.engine.reconcile import Reconciler
from mirage.control.targets import unnumbered
from mirage.geometry import asleep_bytes
from mirage.protocol import Allotment
from mirage.simulate.holding import SimulatedMemory
from tests.examples import examples

pytestmark = pytest.mark.engine

State = tuple[int, int, int, int]
"""Layers remapped, slots, extents, experts."""


class Way(Protocol):
    """Interface of both sides: an engine's memory, its steps to an allotment, and requests that
    take blocks.
    """

    def aim(self, allotment: Allotment) -> bool: ...
    def settle(self) -> bool: ...
    def state(self) -> State: ...
    def held_bytes(self) -> int: ...
    def settled(self) -> bool: ...
    def exceeded(self) -> bool: ...
    def free(self) -> int: ...
    def start(self, blocks: int) -> None: ...
    def finish(self, which: int) -> None: ...
    def requests(self) -> list[int]: ...
    def route(self, layer: int, experts: set[int]) -> None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


class Real:
    """The real side: `mirage.control.engine.reconcile` over pages of this process."""

    def __init__(self) -> None:
        self.host = HostMemory(experts=True)
        self.reconciler = Reconciler(
            self.host.worker, SHAPE, self.host.blocks, Fence(), time.monotonic
        )
        self.taken: list[list[Any]] = []

    def aim(self, allotment: Allotment) -> bool:
        return self.reconciler.aim(allotment)

    def settle(self) -> bool:
        return self.reconciler.reconcile()

    def state(self) -> State:
        memory = self.host.memory
        return (
            memory.layers_remapped,
            memory.stream_slots,
            self.host.blocks.book.backed_extents(),
            memory.experts,
        )

    def held_bytes(self) -> int:
        return self.host.memory.pool.held_bytes

    def settled(self) -> bool:
        return self.reconciler.reconciled

    def exceeded(self) -> bool:
        return self.reconciler.exceeded

    def free(self) -> int:
        return int(self.host.pool.get_num_free_blocks())

    def start(self, blocks: int) -> None:
        self.taken.append(self.host.pool.get_new_blocks(blocks))

    def finish(self, which: int) -> None:
        self.host.pool.free_blocks(self.taken.pop(which))

    def requests(self) -> list[int]:
        return [len(blocks) for blocks in self.taken]

    def route(self, layer: int, experts: set[int]) -> None:
        """Compute a layer that routes to `experts`, and check that these are mapped and have their
        content.
        """
        streamer = self.host.memory.giver
        assert streamer is not None
        streamer.before(layer)
        streamer.routed(layer, experts)
        home = streamer.layers[layer].range
        for expert in experts:
            for span in EXPERTS.spans(expert):
                assert bool((home.tensor(*span) == layer + 1).all())
        streamer.after(layer)

    def check(self) -> None:
        """Check the books, and that no extent in which requests have blocks was given back."""
        self.host.memory.check_integrity()
        self.host.memory.self_check()
        self.host.blocks.check_integrity()
        used = {block.block_id for blocks in self.taken for block in blocks}
        assert used <= set(self.host.extents.mapped)

    def close(self) -> None:
        self.host.close()


class Simulated:
    """The simulated side: `mirage.simulate.holding`, with a count of the blocks in use."""

    def __init__(self) -> None:
        self.holding = SimulatedMemory(
            SHAPE, unnumbered(SHAPE, 0, 0, START), lambda before, after: 0
        )
        self.taken: list[int] = []

    def aim(self, allotment: Allotment) -> bool:
        newer = self.holding.aim(allotment)
        if newer:  # as the simulator's engine does at once
            self.settle()
        return newer

    def settle(self) -> bool:
        return self.holding.reconcile(sum(self.taken))[0]

    def state(self) -> State:
        holding = self.holding
        return holding.layers_remapped, holding.stream_slots, holding.extents, holding.experts

    def held_bytes(self) -> int:
        return self.holding.held_bytes

    def settled(self) -> bool:
        return self.holding.reconciled

    def exceeded(self) -> bool:
        return self.holding.recalls(sum(self.taken), running=2)

    def free(self) -> int:
        return max(0, self.holding.blocks - sum(self.taken))

    def start(self, blocks: int) -> None:
        self.taken.append(blocks)

    def finish(self, which: int) -> None:
        self.taken.pop(which)

    def requests(self) -> list[int]:
        return self.taken

    def route(self, layer: int, experts: set[int]) -> None: ...

    def check(self) -> None:
        """Check that the extents hold the blocks that requests use and the null block."""
        used = sum(self.taken)
        assert self.holding.extents >= (used + 1 if used else 1)

    def close(self) -> None: ...


WAYS: dict[str, type[Way]] = {"real": Real, "simulated": Simulated}
each_way = pytest.mark.parametrize("kind", WAYS)
allotted = st.tuples(
    st.integers(0, 3), st.integers(1, 2), st.integers(1, EXTENTS), st.integers(0, EXPERTS.most)
).map(lambda drawn: (*drawn[:3], 0 if drawn[0] else drawn[3]))


def allotment(
    revision: int,
    remapped: int,
    stream_slots: int,
    extents: int,
    experts: int = 0,
    recall: bool = False,
) -> Allotment:
    slots = stream_slots if remapped else 0
    grant = grant_of(remapped, extents, experts)
    return Allotment(revision, remapped, slots, extents, grant, None, recall, experts)


class Contract(RuleBasedStateMachine):
    """Allotments, rounds and requests in any order, on either side."""

    kind: type[Real | Simulated]

    @initialize()
    def begin(self) -> None:
        self.way: Way = self.kind()
        self.sent: Allotment | None = None
        self.ceiling = grant_of(0, START)

    @rule(to=allotted, recall=st.booleans())
    def newer(self, to: tuple[int, int, int, int], recall: bool) -> None:
        """Send a newer allotment. It is adopted at once: layers or experts that are to go are
        given, and what it takes is not taken any more.
        """
        revision = self.sent.revision + 1 if self.sent else 1
        self.sent = allotment(revision, *to, recall=recall)
        self.ceiling = max(self.way.held_bytes(), self.sent.grant_bytes)
        remapped, _, _, experts = self.way.state()
        assert self.way.aim(self.sent)
        if experts == self.sent.experts == 0:
            assert self.way.state()[0] >= min(remapped, self.sent.layers_remapped)
        if grant_of(self.sent.layers_remapped, 0, self.sent.experts) < grant_of(
            remapped, 0, experts
        ):
            there = self.way.state()[0], self.way.state()[3]
            assert there == (self.sent.layers_remapped, self.sent.experts), "they are given at once"

    @precondition(lambda self: self.sent)
    @rule(to=allotted, before=st.integers(0, 3))
    def older(self, to: tuple[int, int, int, int], before: int) -> None:
        assert self.sent is not None
        state, held = self.way.state(), self.way.held_bytes()
        assert not self.way.aim(allotment(self.sent.revision - before, *to))
        assert (self.way.state(), self.way.held_bytes()) == (state, held)

    @rule()
    def settle(self) -> None:
        before, settled = self.way.state(), self.way.settled()
        moved = self.way.settle()
        if self.way.state() != before:
            assert moved
        if settled:
            assert self.way.state() == before, "once settled, nothing moves"

    @rule(layer=st.integers(0, LAYERS - 1), experts=st.sets(st.integers(0, EXPERTS.count - 1)))
    def route(self, layer: int, experts: set[int]) -> None:
        state = self.way.state()
        self.way.route(layer, experts)
        assert self.way.state() == state

    @rule(count=st.integers(1, 5))
    def start(self, count: int) -> None:
        if count <= self.way.free():
            self.way.start(count)

    @precondition(lambda self: self.way.requests())
    @rule(which=st.integers(0, 100))
    def finish(self, which: int) -> None:
        self.way.finish(which % len(self.way.requests()))

    @precondition(lambda self: self.way.exceeded())
    @rule()
    def preempt(self) -> None:
        """After a recall, preempt requests until it is obeyed; then no more extents are held than
        it allows.
        """
        assert self.sent is not None and self.sent.recall
        assert sum(self.way.requests()) + 1 > self.sent.kv_extents
        while self.way.exceeded():
            self.way.finish(len(self.way.requests()) - 1)
        for _ in range(2):
            self.way.settle()
        assert self.way.state()[2] <= self.sent.kv_extents

    @invariant()
    def sound(self) -> None:
        self.way.check()
        held = self.way.held_bytes()
        remapped, _, extents, experts = self.way.state()
        assert held == grant_of(remapped, extents, experts)
        assert 0 in (remapped, experts)
        grant = self.sent.grant_bytes if self.sent else grant_of(0, START)
        self.ceiling = max(grant, min(self.ceiling, held))
        assert held <= self.ceiling, "never above what was held, or granted"
        usable = self.sent.kv_extents if self.sent else START
        assert self.way.free() <= max(0, usable - 1)

    @invariant()
    def recall_is_only_what_was_said(self) -> None:
        used = sum(self.way.requests())
        exceeds = self.sent is not None and self.sent.recall and used + 1 > self.sent.kv_extents
        assert self.way.exceeded() == (used > 0 and exceeds)

    def teardown(self) -> None:
        """At the end no request runs: the engine comes to hold exactly its
        allotment, and keeps it.
        """
        while self.way.requests():
            self.way.finish(0)
        for _ in range(3):
            self.way.settle()
        assert self.way.settled()
        assert not self.way.settle()
        if self.sent is not None:
            assert self.way.state()[0] == self.sent.layers_remapped
            assert self.way.state()[2] == self.sent.kv_extents
            assert self.way.state()[1] == self.sent.stream_slots
            assert self.way.state()[3] == self.sent.experts
            assert self.way.held_bytes() == self.sent.grant_bytes
        self.way.close()


@pytest.mark.hypothesis
@each_way
def test_any_order_of_events(kind: str) -> None:
    machine = type(f"{kind.title()}Contract", (Contract,), {"kind": WAYS[kind]})
    run_state_machine_as_test(
        machine,
        settings=examples(60, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]),
    )


@each_way
def test_one_round_gives_before_it_takes(kind: str) -> None:
    """One round turns layers into extents within the same grant, and another round turns the
    extents back into layers.
    """
    way = WAYS[kind]()
    pages = LAYER_BYTES // PAGE
    assert way.aim(allotment(1, 2, 2, START + 2 * pages))
    assert way.state() == (2, 2, START + 2 * pages, 0)
    assert way.aim(allotment(2, 0, 0, START))
    assert way.state() == (0, 0, START, 0)
    assert way.settled() and not way.settle()
    way.close()


@each_way
def test_all_layers_go_and_come_back_in_one_round_each(kind: str) -> None:
    way = WAYS[kind]()
    for revision, awake in ((1, (2, 1, START + 6, 0)), (3, (0, 0, START, 0)), (5, (0, 0, 9, 2))):
        assert way.aim(Allotment(revision, LAYERS, 0, 1, asleep_bytes(SHAPE), asleep=True)), "newer"
        assert way.state() == (LAYERS, 0, 1, 0) and way.held_bytes() == asleep_bytes(SHAPE)
        assert way.aim(allotment(revision + 1, *awake))
        remapped, stream_slots, extents, experts = way.state()
        assert (remapped, stream_slots, experts) == (awake[0], awake[1], awake[3])
        assert 0 < extents < awake[2] and not way.settled(), "KV for one request comes first"
        assert way.settle() and way.state() == awake
    way.close()


@each_way
def test_layers_and_experts_turn_into_each_other(kind: str) -> None:
    """An allotment takes layers instead of experts, and a later one the reverse. One round does
    each change and counts the memory of both.
    """
    way = WAYS[kind]()
    assert way.aim(allotment(1, 0, 0, START + 10, 2))
    assert way.state() == (0, 0, START + 10, 2)
    assert way.aim(allotment(2, 2, 1, START + 6))
    assert way.state() == (2, 1, START + 6, 0)
    assert way.aim(allotment(3, 0, 0, START + 5, 1))
    assert way.state() == (0, 0, START + 5, 1)
    assert way.settled() and not way.settle()
    way.close()


@given(st.lists(allotted, min_size=1, max_size=8))
@examples(40, suppress_health_check=[HealthCheck.too_slow])
def test_without_requests_both_are_the_same_after_every_allotment(targets) -> None:
    real, simulated = Real(), Simulated()
    for revision, target in enumerate(targets, start=1):
        for way in (real, simulated):
            assert way.aim(allotment(revision, *target))
        assert real.state() == simulated.state()
        assert real.held_bytes() == simulated.held_bytes()
        assert real.free() == simulated.free()
        assert real.settled() == simulated.settled()
    real.close()
