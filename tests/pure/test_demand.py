"""The wishes of an engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.engine.demand import LOOKAHEAD_STEPS, Demand, blocks_for, demand

pytestmark = pytest.mark.pure

IDLE = {
    "running": 0,
    "waiting_tokens": [],
    "free_blocks": 0,
    "missing_blocks": 0,
    "headroom_blocks": 2,
    "block_tokens": 32,
    "free_slots": 8,
}


def test_an_idle_engine_wants_nothing() -> None:
    assert demand(**IDLE) == Demand(0, 0)


def test_running_requests_want_their_next_steps_and_the_headroom() -> None:
    ahead = blocks_for(8 * LOOKAHEAD_STEPS, 32) + 2
    assert demand(**IDLE | {"running": 8}) == Demand(ahead, 0)
    assert demand(**IDLE | {"running": 8, "free_blocks": ahead}) == Demand(0, 0)


def test_what_is_missing_comes_on_top() -> None:
    ahead = blocks_for(8 * LOOKAHEAD_STEPS, 32) + 2
    wish = demand(**IDLE | {"running": 8, "missing_blocks": 3, "free_blocks": 1})
    assert wish == Demand(3 + ahead, 0)


def test_only_requests_that_could_start_count_for_admission() -> None:
    waiting = [31, 32, 64]
    assert demand(**IDLE | {"waiting_tokens": waiting}) == Demand(0, 1 + 2 + 3)
    assert demand(**IDLE | {"waiting_tokens": waiting, "free_slots": 2}) == Demand(0, 1 + 2)
    assert demand(**IDLE | {"waiting_tokens": waiting, "free_blocks": 4}) == Demand(0, 2)


@given(
    running=st.integers(0, 64),
    waiting=st.lists(st.integers(1, 1000), max_size=8),
    free=st.integers(0, 200),
    missing=st.integers(0, 20),
)
def test_more_free_blocks_never_raise_the_wish(
    running: int, waiting: list[int], free: int, missing: int
) -> None:
    facts = IDLE | {"running": running, "waiting_tokens": waiting, "missing_blocks": missing}
    less = demand(**facts | {"free_blocks": free})
    more = demand(**facts | {"free_blocks": free + 1})
    assert more.growth <= less.growth and more.admission <= less.admission
    assert min(less.growth, less.admission) >= 0
