"""The table of a tenant's states: every state with every event."""

from __future__ import annotations

from itertools import product

import pytest

from mirage.control.roster.states import (
    ALIVE,
    COMING,
    GONE,
    TRANSITIONS,
    Life,
    LifeEvent,
    LifeState,
    UnexpectedEventError,
    WeightsPlace,
)

pytestmark = pytest.mark.pure
ORDERS = {LifeEvent.START, LifeEvent.WAKE, LifeEvent.DRAIN}
TABLE = """
             starting ready    sleeping waking   draining stopped  down     failed
start        -        -        -        -        -        starting starting starting
wake         -        -        waking   -        -        -        -        -
drain        draining draining draining draining -        -        -        -
started      ready    -        -        -        draining -        -        -
woke         -        -        -        ready    draining -        -        -
slept        sleeping -        -        -        sleeping -        -        -
ended        -        -        -        -        stopped  -        stopped  stopped
crashed      down     down     down     down     down     -        -        -
given_up     failed   -        -        -        -        -        failed   -
"""
"""State after each event, by event and state before it, written here once more to be compared with
the product's table.
"""


def expected() -> dict[tuple[str, str], str]:
    head, *rows = (line.split() for line in TABLE.strip().splitlines())
    return {(before, row[0]): to for row in rows for before, to in zip(head, row[1:], strict=True)}


@pytest.mark.parametrize(("before", "event"), [*product(LifeState, LifeEvent)])
def test_each_state_with_each_event(before: LifeState, event: LifeEvent) -> None:
    wanted = expected()[before.value, event.value.replace(" ", "_")]
    life = Life(before)
    if wanted == "-":
        with pytest.raises(UnexpectedEventError, match=f"'{event}' of a tenant that is {before}"):
            life.after(event)
    else:
        assert life.after(event).state == wanted


def reached(first: LifeState, without: frozenset[LifeEvent] = frozenset()) -> set[LifeState]:
    found, new = set(), [first]
    while new:
        state = new.pop()
        found.add(state)
        ways = TRANSITIONS[state].items()
        new += [to for event, to in ways if event not in without and to not in found]
    return found


def test_every_state_is_reached_from_the_first() -> None:
    assert reached(Life().state) == set(LifeState)


@pytest.mark.parametrize("state", LifeState)
def test_no_state_is_a_dead_end(state: LifeState) -> None:
    """From each state a tenant can become ready, and can be stopped, without any failure on the
    way.
    """
    without = frozenset({LifeEvent.CRASHED, LifeEvent.GIVEN_UP})
    assert {LifeState.READY, LifeState.STOPPED} <= reached(state, without)


@pytest.mark.parametrize("state", LifeState)
def test_a_process_is_there_between_its_start_and_its_end(state: LifeState) -> None:
    for event, to in TRANSITIONS[state].items():
        begins, ends = event is LifeEvent.START, event in {"ended", "crashed", "given up"}
        assert (to in ALIVE) == (begins or (state in ALIVE and not ends))


def test_groups_part_the_states() -> None:
    assert set(LifeState) == ALIVE | GONE and not ALIVE & GONE
    assert COMING < ALIVE


def test_no_order_moves_weights() -> None:
    for state, place in product(LifeState, WeightsPlace):
        life = Life(state, place)
        for event in ORDERS & TRANSITIONS[state].keys():
            assert life.after(event).place is place


def way(*events: LifeEvent, keeps: bool = True) -> Life:
    life = Life(keeps=keeps)
    for event in events:
        life = life.after(event)
    return life


E = LifeEvent
UP = (E.START, E.STARTED)
ASLEEP = (*UP, E.DRAIN, E.SLEPT)


@pytest.mark.parametrize(
    ("events", "keeps", "state", "place"),
    [
        ((), True, "stopped", "disk"),
        ((E.START,), True, "starting", "disk"),
        (UP, True, "ready", "device"),
        ((*UP, E.DRAIN), True, "draining", "device"),
        (ASLEEP, True, "sleeping", "host"),
        ((*ASLEEP, E.WAKE), True, "waking", "host"),
        ((*ASLEEP, E.WAKE, E.WOKE), True, "ready", "device"),
        ((*ASLEEP, E.DRAIN), True, "draining", "host"),
        ((*ASLEEP, E.DRAIN, E.ENDED), True, "stopped", "host"),
        ((*ASLEEP, E.DRAIN, E.ENDED), False, "stopped", "disk"),
        ((*UP, E.CRASHED), True, "down", "host"),
        ((*UP, E.CRASHED), False, "down", "disk"),
        ((*UP, E.CRASHED, E.GIVEN_UP), True, "failed", "host"),
        ((E.START, E.CRASHED), True, "down", "disk"),
        ((E.START, E.SLEPT), True, "sleeping", "host"),
        ((E.START, E.DRAIN, E.STARTED, E.ENDED, E.START), True, "starting", "host"),
        ((E.START, E.GIVEN_UP, E.START, E.STARTED), True, "ready", "device"),
    ],
)
def test_the_place_of_the_weights(
    events: tuple[LifeEvent, ...], keeps: bool, state: str, place: str
) -> None:
    assert way(*events, keeps=keeps)[:2] == (state, place)


@pytest.mark.parametrize(
    ("before", "kept", "after", "place"),
    [
        ((), True, (), "host"),
        ((E.START,), True, (), "host"),
        ((E.START,), True, (E.DRAIN, E.ENDED), "host"),
        (UP, True, (), "device"),
        (UP, True, (E.CRASHED,), "host"),
        (UP, False, (E.CRASHED,), "disk"),
        (ASLEEP, False, (), "host"),
        (ASLEEP, False, (E.DRAIN, E.ENDED), "disk"),
        ((*ASLEEP, E.DRAIN, E.ENDED), False, (), "disk"),
        ((*UP, E.CRASHED), False, (E.START,), "disk"),
        ((*UP, E.CRASHED), True, (E.START,), "host"),
    ],
)
def test_who_keeps_them_says_where_they_are(
    before: tuple[LifeEvent, ...], kept: bool, after: tuple[LifeEvent, ...], place: str
) -> None:
    life = way(*before).kept(kept=kept)
    for event in after:
        life = life.after(event)
    assert life.place == place
    assert life.kept(kept=kept) == life
