"""Steps of an engine's memory to an allotment: their kinds, their order, and their bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.engine.way import CallBack, Kind, Map, Move, Parameters, Retire, Unmap, Way
from mirage.protocol import Allotment, LentInTurns
from tests.examples import examples

pytestmark = pytest.mark.pure

LAYERS, LAYER, EXPERT, EXTENT, MOST = 12, 6, 1, 2, 30
"""Layers of a model; units of memory of a layer, of an expert of each layer, of an extent."""


def cost(layers_remapped: int, experts: int) -> int:
    return (LAYERS - layers_remapped) * LAYER - experts * EXPERT * (LAYERS - 1)


def grant(layers_remapped: int, extents: int, experts: int = 0) -> int:
    return cost(layers_remapped, experts) + extents * EXTENT


@dataclass
class Extents:
    """Model of an engine's memory. `busy` are the extents in which requests have blocks, usable
    ones or retiring ones.
    """

    usable: set[int]
    retiring: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)
    in_flight: set[int] = field(default_factory=set)
    layers_remapped: int = 0
    stream_slots: int = 0
    experts: int = 0
    granted: int = 0
    saves: bool = True
    runs: bool = False
    least_extents: int = 3

    @property
    def absent(self) -> bool:
        return self.layers_remapped == LAYERS

    def at_rest(self) -> bool:
        return not self.runs

    @property
    def usable_extents(self) -> int:
        return len(self.usable)

    @property
    def retiring_extents(self) -> int:
        return len(self.retiring)

    @property
    def held(self) -> int:
        return grant(self.layers_remapped, len(self.usable | self.retiring), self.experts)

    def busy_extents(self) -> int:
        return len(self.busy)

    def awaits_requests(self) -> bool:
        return bool(self.retiring & self.busy)

    def may_retire(self) -> bool:
        return self.saves

    def emptied_extents(self) -> int:
        return len(self.emptied())

    def emptied(self) -> list[int]:
        return sorted(self.retiring - self.busy - self.in_flight)

    def affordable_extents(self) -> int:
        return self.spare() // EXTENT

    def spare(self) -> int:
        return max(0, self.granted - self.held)

    def cost(self, layers_remapped: int, experts: int) -> int:
        return cost(layers_remapped, experts)

    def make(self, move: Move) -> None:
        """Carry out one move. Raises `AssertionError` if real memory could not do so."""
        before = self.held
        match move:
            case Parameters(layers_remapped, stream_slots, experts):
                self.layers_remapped, self.stream_slots, self.experts = (
                    layers_remapped,
                    stream_slots,
                    experts,
                )
            case Retire(count, anew):
                if anew:
                    self.call_back(len(self.retiring))
                gone = sorted(self.usable, key=lambda e: (e in self.busy, -e))[:count]
                assert len(gone) == count
                self.usable -= set(gone)
                self.retiring |= set(gone)
            case CallBack(count):
                assert 0 < count <= len(self.retiring)
                self.call_back(count)
            case Unmap(count):
                assert 0 < count <= len(self.emptied())
                self.retiring -= set(self.emptied()[:count])
            case Map(count):
                free = sorted(set(range(MOST)) - self.usable - self.retiring)
                assert 0 < count <= len(free)
                self.usable |= set(free[:count])
        assert self.held <= max(before, self.granted), "taken, and not granted"

    def call_back(self, count: int) -> None:
        back = set(sorted(self.retiring, key=lambda e: e not in self.busy)[:count])
        self.retiring -= back
        self.usable |= back


class Few:
    """Stand-in for the worker: one round has time for `paced` things, and the device has memory for
    at most `short` of those wanted.
    """

    def __init__(self, paced: int = 99, short: int = 99) -> None:
        self.left, self.short = paced, short

    def paced(self, kind: Kind, wanted: int) -> int:
        return max(0, min(self.left, wanted))

    def obtainable(self, kind: Kind, wanted: int) -> int:
        return min(self.short, wanted)


def allotment(
    revision: int,
    layers_remapped: int,
    stream_slots: int,
    extents: int,
    experts: int = 0,
    recall: bool = False,
) -> Allotment:
    granted = grant(layers_remapped, extents, experts)
    return Allotment(
        revision,
        layers_remapped,
        stream_slots if layers_remapped else 0,
        extents,
        granted,
        None,
        recall,
        experts,
    )


def sleep(revision: int) -> Allotment:
    return Allotment(revision, LAYERS, 0, 1, grant(LAYERS, 1), asleep=True)


def passed(way: Way, memory: Extents) -> list[Move]:
    """Moves of one round; each is carried out before the next one is asked for."""
    made = []
    for move in way.moves():
        memory.make(move)
        made.append(move)
    return made


def engine(extents: int = 10, **held: Any) -> Extents:
    return Extents(set(range(extents)), **held)


def aimed(memory: Extents, target: Allotment, few: Few | None = None) -> Way:
    way = Way(memory, few or Few())
    assert way.aim(target)
    memory.granted = target.grant_bytes
    return way


def test_layers_go_before_extents_come() -> None:
    memory = engine()
    way = aimed(memory, allotment(1, 3, 2, 19))
    assert passed(way, memory) == [Parameters(3, 2, 0), Map(9, 9)]
    assert way.reached and passed(way, memory) == []


def test_extents_go_before_layers_come_and_the_slots_go_with_the_last() -> None:
    memory = engine(19, layers_remapped=3, stream_slots=2)
    way = aimed(memory, allotment(1, 0, 0, 10))
    assert passed(way, memory) == [Retire(9), Unmap(9), Parameters(0, 0, 0, 3, 3)]
    assert way.reached


def test_what_is_in_use_stays_and_holds_up_what_it_would_pay_for() -> None:
    memory = engine(19, layers_remapped=3, stream_slots=2, busy=set(range(12)))
    way = aimed(memory, allotment(1, 0, 0, 10))
    assert passed(way, memory) == [Retire(9), Unmap(7), Parameters(1, 2, 0, 2, 2)]
    assert not way.reached and passed(way, memory) == []
    memory.busy = set(range(10))
    assert passed(way, memory) == [Unmap(2), Parameters(0, 0, 0, 1, 1)]


def test_an_extent_that_a_step_in_flight_touches_stays() -> None:
    memory = engine(in_flight={9})
    way = aimed(memory, allotment(1, 0, 0, 8))
    assert passed(way, memory) == [Retire(2), Unmap(1)]
    memory.in_flight.clear()
    assert passed(way, memory) == [Unmap(1)]


def test_extents_that_retire_are_called_back_before_any_is_mapped() -> None:
    memory = engine(busy=set(range(10)))
    way = aimed(memory, allotment(1, 0, 0, 6))
    assert passed(way, memory) == [Retire(4)]
    assert way.aim(allotment(2, 0, 0, 8))
    memory.granted = grant(0, 8)
    assert passed(way, memory) == [CallBack(2)], "two stay where requests sit"
    assert way.aim(allotment(3, 0, 0, 12))
    memory.granted = grant(0, 12)
    assert passed(way, memory) == [CallBack(2), Map(2, 2)]


def test_nothing_retires_while_what_is_cached_cannot_be_saved() -> None:
    memory = engine(saves=False)
    way = aimed(memory, allotment(1, 0, 0, 6))
    assert passed(way, memory) == []
    memory.saves = True
    assert passed(way, memory) == [Retire(4), Unmap(4)]


def test_a_recall_takes_what_is_empty_now() -> None:
    """Five extents retire while requests use them; then requests in other extents end. A recall
    retires those instead and unmaps them; without a recall the engine waits.
    """
    for recall, made in ((True, [Retire(5, True), Unmap(5)]), (False, [])):
        memory = engine(busy=set(range(10)))
        way = aimed(memory, allotment(1, 0, 0, 5, recall=recall))
        assert passed(way, memory) == [Retire(5)]
        memory.busy = set(memory.retiring)
        assert passed(way, memory) == made
        assert way.reached == recall


def test_requests_are_recalled_but_for_the_last() -> None:
    memory = engine(busy=set(range(8)))
    way = aimed(memory, allotment(1, 0, 0, 6, recall=True))
    passed(way, memory)
    assert way.exceeded and way.recalls(2) and not way.recalls(1)
    memory.busy = set(range(6))
    assert not way.exceeded and not way.recalls(2)
    way.aim(allotment(2, 0, 0, 3))
    assert not way.recalls(2), "more is in use, and nothing is recalled"


def test_experts_and_layers_turn_into_each_other_in_one_go() -> None:
    memory = engine()
    way = aimed(memory, allotment(1, 0, 0, 15, experts=1), Few(paced=1))
    assert passed(way, memory) == [Parameters(0, 0, 1, 1, 1), Map(1, 5)]
    way = aimed(memory, allotment(2, 4, 1, 11))
    assert passed(way, memory) == [Parameters(4, 1, 0, 1, 1)]
    assert way.reached


def test_a_round_is_bounded_and_a_device_that_is_short_is_asked_for_less() -> None:
    memory = engine()
    way = aimed(memory, allotment(1, 4, 1, 20), Few(paced=2, short=1))
    assert passed(way, memory) == [Parameters(2, 1, 0), Map(1, 4)]
    way = aimed(memory, allotment(2, 0, 0, 11), Few(short=1))
    assert passed(way, memory) == [Parameters(1, 1, 0, 1, 2)], (
        "the slots stay until the layers are there"
    )


@pytest.mark.parametrize("held", [(0, 0, 0), (3, 2, 0), (0, 0, 2)])
def test_an_engine_falls_asleep_in_one_go_once_nothing_runs(held: tuple[int, int, int]) -> None:
    memory = engine(runs=True, layers_remapped=held[0], stream_slots=held[1], experts=held[2])
    way = aimed(memory, sleep(1), Few(paced=2))
    assert way.rests and passed(way, memory) == [] and not way.asleep
    memory.runs = False
    assert passed(way, memory)[:2] == [Parameters(LAYERS, 0, 0, *memory_turns(held)), Retire(9)]
    for _ in range(5):
        passed(way, memory)
    assert way.rests and way.reached and way.asleep and memory.held == grant(LAYERS, 1)


def memory_turns(held: tuple[int, int, int]) -> tuple[int, int]:
    """Arguments `back` and `wanted` of a move, which are 1 each if the engine has experts away."""
    return (1, 1) if held[2] else (0, 0)


def asleep() -> Extents:
    return engine(1, layers_remapped=LAYERS, granted=grant(LAYERS, 1))


def test_of_an_engine_that_wakes_layers_come_first_with_extents_for_one_request() -> None:
    memory = asleep()
    way = aimed(memory, allotment(2, 3, 2, 10))
    assert not way.wakes
    assert passed(way, memory) == [Parameters(3, 2, 0, 9, 9), Map(2, 2)]
    assert way.wakes and not way.reached and not way.rests and not way.asleep
    assert passed(way, memory) == [Map(7, 7)]
    assert way.reached and not way.wakes
    assert way.aim(allotment(3, 3, 2, 11)) and not way.wakes, "it woke before"


def test_one_that_wakes_to_less_than_a_request_takes_has_that() -> None:
    memory = asleep()
    way = aimed(memory, allotment(2, 0, 0, 2))
    assert passed(way, memory) == [Parameters(0, 0, 0, LAYERS, LAYERS), Map(1, 1)]
    assert way.reached and not way.wakes


@pytest.mark.parametrize("to", [(0, 0, 10, 0), (3, 2, 10, 0), (0, 0, 10, 2)])
def test_as_long_as_layers_are_absent_an_engine_rests(to: tuple[int, int, int, int]) -> None:
    memory = asleep()
    way = aimed(memory, allotment(2, *to), Few(short=0))
    assert passed(way, memory) == [] and way.rests
    way = aimed(memory, allotment(3, *to), Few(short=1))
    first = passed(way, memory)[0]
    assert first == (
        Parameters(0, 0, 2, 1, 1) if to[3] else Parameters(11, 1, 0, 1, LAYERS - to[0])
    )
    assert not way.rests, "through one slot it may go on"
    for _ in range(30):
        passed(way, memory)
    assert way.reached and memory.stream_slots == to[1]


def test_an_engine_of_layers_that_stay_gives_its_extents() -> None:
    memory = engine(runs=True)
    way = aimed(memory, Allotment(1, 0, 0, 1, grant(0, 1), asleep=True))
    assert way.rests and passed(way, memory) == []
    memory.runs = False
    assert passed(way, memory) == [Retire(9), Unmap(9)] and way.asleep
    assert way.aim(allotment(2, 0, 0, 10)) and not way.rests


def test_only_newer_allotments_are_adopted() -> None:
    way = aimed(engine(), allotment(3, 0, 0, 12))
    for revision in (3, 2, 0):
        assert not way.aim(allotment(revision, 0, 0, 5))
    assert way.target == allotment(3, 0, 0, 12)


def test_without_an_allotment_nothing_moves() -> None:
    way = Way(engine())
    assert (list(way.moves()), way.reached, way.exceeded, way.open_extents) == (
        [],
        True,
        False,
        None,
    )


@pytest.mark.parametrize("lent", ["nothing", "in turns", "in turns that drain"])
def test_layers_are_lent_while_they_are_away_or_if_it_is_said_of_others(lent: LentInTurns) -> None:
    assert Way(engine()).lent == "nothing"
    assert Way(engine(layers_remapped=1, stream_slots=1)).lent == "at once"
    assert aimed(engine(), Allotment(1, 0, 0, 10, grant(0, 10), lent=lent)).lent == lent


def test_waiting_requests_may_use_what_the_allotment_leaves_open() -> None:
    way = aimed(engine(), Allotment(1, 0, 0, 10, grant(0, 10), open_extents=7))
    assert way.open_extents == 7


targets = st.tuples(
    st.integers(0, LAYERS - 3), st.integers(1, 2), st.integers(1, MOST), st.integers(0, 3)
).map(lambda drawn: (*drawn[:3], 0 if drawn[0] else drawn[3]))
sets = st.sets(st.integers(1, MOST - 1))


@given(
    way=st.lists(st.tuples(st.none() | targets, sets, sets, st.booleans()), min_size=1, max_size=8),
    paced=st.integers(1, 5),
    short=st.integers(1, 5),
)
@examples(300)
def test_any_way_gives_first_keeps_what_is_used_and_ends(way, paced, short) -> None:
    memory = engine(granted=grant(0, 10))
    made = Way(memory, Few(paced, short))
    for revision, (target, busy, in_flight, recall) in enumerate(way, start=1):
        sent = allotment(revision, *target, recall=recall) if target else sleep(revision)
        memory.runs = bool(busy or in_flight)
        before = memory.held
        assert made.aim(sent)
        memory.granted = sent.grant_bytes
        memory.busy = busy & (memory.usable | memory.retiring)
        memory.in_flight = in_flight
        kept = (busy | in_flight) & (memory.usable | memory.retiring)
        for _ in range(3):
            _gives_before_it_takes(passed(made, memory))
            assert kept <= memory.usable | memory.retiring, "in use, and given"
            if memory.runs and target is None:
                assert memory.held == before, "it falls asleep once nothing runs"
                continue
            assert len(memory.usable) <= sent.kv_extents
    memory.busy, memory.in_flight, memory.runs = set(), set(), False
    for _ in range(3 * MOST):
        passed(made, memory)
    assert made.reached and memory.held == memory.granted
    assert passed(made, memory) == []


def _gives_before_it_takes(moves: list[Move]) -> None:
    """Check the order of a round's moves: what gives memory comes before what takes it.

    A change of layers may stand at either end: those that go, and those that come back. Layers of
    an engine that wakes come back before extents do.
    """
    order: list[type] = [Parameters, Retire, Unmap, Parameters, CallBack, Map, Parameters]
    for move in moves:
        order = order[order.index(type(move)) + 1 :]


def test_one_that_wakes_and_is_lowered_gives_without_a_bound_of_its_round() -> None:
    memory = asleep()
    way = aimed(memory, allotment(2, 3, 2, 10))
    passed(way, memory)
    assert way.wakes
    assert way.aim(allotment(3, 3, 2, 1)) and not way.wakes
