"""The length of draining turns as the controller measures it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.drained_turns import DrainedTurns
from mirage.control.spilling import TurnLengths

pytestmark = pytest.mark.pure

MEANT = TurnLengths(2.0, drains=True, below_bytes=7)
HOUR = 3600.0


def seen(lengths: list[float], begins_s: float = 2.0) -> float:
    """Measured length of a turn after past turns of `lengths` seconds, each of which was revoked
    after at most `begins_s`.
    """
    turns = DrainedTurns(MEANT)
    now = 0.0
    for number, length in enumerate(lengths):
        turns.began("ab"[number % 2], now)
        turns.revoked(now + min(length, begins_s))
        now += length
    turns.began("c", now)
    found = turns.turns(now, alone=False)
    assert found == MEANT._replace(seconds=found.seconds)
    return found.seconds


def test_turns_are_what_they_are_meant_to_be_until_one_is_over() -> None:
    assert seen([]) == 2.0
    assert seen([20.0]) == 20.0


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=40))
def test_their_length_is_one_between_those_seen(lengths: list[float]) -> None:
    assert min(lengths) - 1e-9 <= seen(lengths) <= max(lengths) + 1e-9


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_turns_that_last_as_long_again_and_again_are_known(before: float, length: float) -> None:
    assert seen([before] + [length] * 40) == pytest.approx(length, rel=0.01, abs=0.01)


def test_of_a_turn_that_nobody_else_wanted_the_end_counts() -> None:
    """A turn was revoked after an hour and then took 9 s to finish its requests. It counts as 11 s:
    the usual 2 s before a turn is revoked, and these 9 s.
    """
    assert seen([HOUR + 9.0], begins_s=HOUR) == pytest.approx(11.0)
    assert seen([HOUR], begins_s=HOUR) == 2.0, "it had nothing to end"


def test_who_gets_the_turn_again_has_had_one_turn() -> None:
    turns = DrainedTurns(MEANT)
    for now in (0.0, 1.0, 2.0):
        turns.began("a", now)
    turns.began("b", 10.0)
    assert turns.turns(10.0, alone=False).seconds == 10.0


@pytest.mark.parametrize(
    ("after_s", "alone", "young"), [(7.9, True, True), (8.0, True, False), (1.0, False, False)]
)
def test_a_turn_that_nobody_waits_for_is_young_for_as_long_as_turns_last(
    after_s: float, alone: bool, young: bool
) -> None:
    turns = DrainedTurns(MEANT)
    turns.began("a", 0.0)
    turns.began("b", 8.0)
    assert turns.turns(8.0 + after_s, alone=alone).young is young
