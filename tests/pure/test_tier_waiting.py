"""Bounds of a request's wait for the pool, and what its engine knows later than the
pool's answer.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.engine.tiers.recent import Recent
from mirage.tiers.contract import Key, Lookup
from mirage.tiers.patience import Patience

pytestmark = pytest.mark.pure


def test_a_request_waits_until_it_is_late() -> None:
    patience = Patience(answer_s=0.05, coming_s=1.0)
    assert patience.waits(Lookup.UNKNOWN, 0.04) and patience.waits(Lookup.COMING, 0.9)
    assert not patience.waits(Lookup.COMING, 1.0)


def test_a_silent_pool_is_waited_for_once() -> None:
    patience = Patience(answer_s=0.05)
    assert not patience.waits(Lookup.UNKNOWN, 0.05)
    assert not patience.waits(Lookup.UNKNOWN, 0.0)
    patience.waits(Lookup.ABSENT, 0.0)
    assert patience.waits(Lookup.UNKNOWN, 0.0)


@given(st.sampled_from([Lookup.ABSENT, Lookup.READY]), st.floats(0, 10))
def test_what_is_known_is_not_waited_for(found: Lookup, waited_s: float) -> None:
    assert not Patience().waits(found, waited_s)


def keys(*numbers: int) -> list[Key]:
    return [Key(bytes([number])) for number in numbers]


def test_what_arrived_since_is_asked_for_again() -> None:
    recent = Recent()
    recent.begin(keys(1, 2, 3))
    recent.end(keys(1), arrived=True)
    mark = recent.mark
    assert recent.any_under_way(keys(2, 9)) and not recent.any_under_way(keys(1, 9))
    recent.end(keys(2), arrived=True)
    recent.end(keys(3), arrived=False)
    assert recent.since(mark, keys(1, 2, 3, 4)) == keys(2)
    assert not recent.any_under_way(keys(1, 2, 3))


def test_old_arrivals_are_forgotten() -> None:
    recent = Recent(most=2)
    recent.end(keys(1, 2, 3), arrived=True)
    assert recent.since(0, keys(1, 2, 3)) == keys(2, 3)
