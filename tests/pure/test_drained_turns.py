"""Turns that drain, as they are seen, and what of them bounds lending."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.drained_turns import (
    UNSEEN,
    DrainedTurns,
    filled_in_time,
    worth_lending_drained,
)
from mirage.control.lending import worth_lending
from mirage.control.spilling import TurnLengths

pytestmark = pytest.mark.pure

MEANT = TurnLengths(2.0, drains=True)
GIB = 1 << 30
bytes_s = st.floats(1e6, 1e12)


def seen(lengths: list[float], turns: DrainedTurns | None = None) -> DrainedTurns:
    turns = turns or DrainedTurns(MEANT)
    now = 0.0
    for number, length in enumerate([*lengths, 0.0]):
        turns.began("ab"[number % 2], now)
        now += length
    return turns


def test_turns_are_what_they_are_meant_to_be_until_one_is_over() -> None:
    first = seen([]).turns()
    assert (first.seconds, first.window_s, first.fills_bytes_s) == (2.0, 2.0, inf)


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=40))
def test_their_length_is_one_between_those_seen(lengths: list[float]) -> None:
    found = seen(lengths).turns()
    assert min(2.0, *lengths) - 1e-9 <= found.seconds <= max(2.0, *lengths) + 1e-9
    assert found.window_s == 2.0


@given(st.floats(0.1, 100))
def test_turns_that_last_as_long_again_and_again_are_known(length: float) -> None:
    assert seen([length] * 40).turns().seconds == pytest.approx(length, rel=0.01, abs=0.01)


def test_who_gets_the_turn_again_has_had_one_turn() -> None:
    turns = DrainedTurns(MEANT)
    for now in (0.0, 1.0, 2.0):
        turns.began("a", now)
    turns.began("b", 10.0)
    assert turns.turns().seconds == 2.0 + (10.0 - 2.0) / 4


def reported(used: int, running: int, waiting: int, at: float = 1.0) -> float:
    turns = DrainedTurns(MEANT)
    turns.began("a", 100.0)
    turns.reported("a", used, running, waiting, 100.0 + at)
    turns.began("b", 120.0)
    return turns.turns().fills_bytes_s


def test_memory_fills_as_fast_as_requests_take_it_while_others_wait() -> None:
    assert reported(5 * GIB, 10, 10) == 5 * GIB
    assert reported(5 * GIB, 10, 10, at=0.5) == 10 * GIB


@pytest.mark.parametrize(
    ("running", "waiting", "at"),
    [(10, 0, 1.0), (0, 0, 1.0), (10, 9, 1.0), (10, 99, 0.4), (10, 99, 2.1)],
)
def test_without_a_queue_too_early_or_too_late_nothing_is_learnt(
    running: int, waiting: int, at: float
) -> None:
    assert reported(5 * GIB, running, waiting, at) == inf


def test_the_slowest_counts_until_it_has_no_queue_or_is_gone() -> None:
    turns = DrainedTurns(MEANT)
    for name, used, start in (("a", 4, 0.0), ("b", 9, 20.0), ("a", 4, 40.0)):
        turns.began(name, start)
        turns.reported(name, used, 1, 50, start + 1.0)
        turns.reported("c", 0, 1, 50, start + 1.0)  # does not have the turn
    turns.began("b", 60.0)
    assert turns.turns().fills_bytes_s == 4
    turns.began("a", 80.0)  # b had no queue
    turns.began("b", 100.0)  # nor a
    assert turns.turns().fills_bytes_s == inf
    turns.reported("b", 9, 1, 50, 101.0)
    turns.began("a", 120.0)
    assert turns.turns().fills_bytes_s == 9
    turns.lost("b")
    assert turns.turns().fills_bytes_s == inf


@given(st.integers(1, 200 * GIB), bytes_s, st.floats(0.01, 100), bytes_s)
def test_what_is_lent_can_still_be_taken_once_it_is_back(
    pool: int, link: float, window: float, fills: float
) -> None:
    lent = filled_in_time(pool, link, window, fills)
    left = window - lent / link
    assert lent >= 0
    assert lent == 0 or fills * left == pytest.approx(pool + lent, rel=1e-6)


@given(st.integers(1, 200 * GIB), bytes_s, st.floats(0.01, 100), bytes_s, st.floats(1, 10))
def test_a_faster_link_a_longer_window_or_faster_requests_lend_no_less(
    pool: int, link: float, window: float, fills: float, times: float
) -> None:
    lent = filled_in_time(pool, link, window, fills) * (1 - 1e-9)
    assert filled_in_time(pool, times * link, window, fills) >= lent
    assert filled_in_time(pool, link, times * window, fills) >= lent
    assert filled_in_time(pool, link, window, times * fills) >= lent


def test_while_nothing_is_seen_the_way_back_takes_little_of_the_window() -> None:
    assert filled_in_time(GIB, 8 * GIB, 2.0, inf) == UNSEEN * 16 * GIB
    assert filled_in_time(GIB, 0.0, 2.0, inf) == filled_in_time(GIB, 0.0, 2.0, 1e9) == 0


@given(
    st.integers(1, 200 * GIB),
    bytes_s,
    st.floats(0.01, 100),
    st.floats(1, 100),
    bytes_s,
    st.floats(0.01, 1),
)
def test_a_turn_that_drains_lends_no_less_than_its_window_and_no_more_than_all_of_it_pays_for(
    pool: int, link: float, window: float, times: float, fills: float, part: float
) -> None:
    turns = TurnLengths(times * window, True, window_s=window, fills_bytes_s=fills)
    lent = worth_lending_drained(pool, link, turns, part, lending=False)
    assert lent >= worth_lending(pool, link * window, part)
    assert lent <= worth_lending(pool, link * window * times, part)


def test_a_turn_that_lasts_longer_than_its_window_pays_for_more() -> None:
    """Of two seconds 5 GiB pay nothing; of twenty they do, if memory fills fast enough."""
    two, twenty = (
        TurnLengths(s, True, window_s=2.0, fills_bytes_s=20.0 * GIB) for s in (2.0, 20.0)
    )
    assert worth_lending_drained(30 * GIB, 50.0 * GIB, two, 1.0, lending=False) == 0
    lent = worth_lending_drained(30 * GIB, 50.0 * GIB, twenty, 1.0, lending=False)
    assert lent == pytest.approx(10 * GIB / 1.4)
    slow = twenty._replace(fills_bytes_s=15.0 * GIB)
    assert worth_lending_drained(30 * GIB, 50.0 * GIB, slow, 1.0, lending=False) == 0
