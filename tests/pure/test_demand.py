"""The wishes of an engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.engine.demand import (
    ASKED,
    Demand,
    blocks_ahead,
    blocks_to_start,
    borrowed,
    demand,
)

pytestmark = pytest.mark.pure

IDLE = {"ahead": 0, "starting": 0, "free_blocks": 0, "missing_blocks": 0}


def test_an_idle_engine_wants_nothing() -> None:
    assert blocks_ahead(0, 16, 2, 32) == 0
    assert demand(**IDLE) == Demand(0, 0)


def test_running_requests_want_their_next_steps_and_the_headroom() -> None:
    ahead = blocks_ahead(8, lookahead_steps=16, headroom_blocks=2, block_tokens=32)
    assert ahead == 8 * 16 // 32 + 2
    assert demand(**IDLE | {"ahead": ahead}) == Demand(ASKED * ahead, 0)
    assert demand(**IDLE | {"ahead": ahead, "free_blocks": 1}) == Demand(ASKED * ahead - 1, 0)
    assert demand(**IDLE | {"ahead": ahead, "free_blocks": ahead}) == Demand(0, 0)


def test_what_is_missing_comes_on_top() -> None:
    wish = demand(**IDLE | {"ahead": 6, "missing_blocks": 3, "free_blocks": 1})
    assert wish == Demand(3 + ASKED * 6, 0)


def test_only_requests_that_could_start_count_for_admission() -> None:
    waiting = [31, 32, 64]
    assert blocks_to_start(waiting, 8, 32) == 1 + 2 + 3
    assert blocks_to_start(waiting, 2, 32) == 1 + 2
    assert blocks_to_start(waiting, -1, 32) == 0
    assert demand(**IDLE | {"starting": 6}) == Demand(0, 6)
    assert demand(**IDLE | {"starting": 6, "free_blocks": 4}) == Demand(0, 2)


def test_newcomers_leave_what_was_borrowed() -> None:
    assert borrowed(usable_blocks=43, own_blocks=40) == 3
    assert borrowed(usable_blocks=40, own_blocks=40) == 0
    assert borrowed(usable_blocks=30, own_blocks=40) == 0


@given(
    ahead=st.integers(0, 64),
    starting=st.integers(0, 300),
    free=st.integers(0, 200),
    missing=st.integers(0, 20),
)
def test_more_free_blocks_never_raise_the_wish(
    ahead: int, starting: int, free: int, missing: int
) -> None:
    facts = {"ahead": ahead, "starting": starting, "missing_blocks": missing}
    less = demand(**facts, free_blocks=free)
    more = demand(**facts, free_blocks=free + 1)
    assert more.growth <= less.growth and more.admission <= less.admission
    assert min(less.growth, less.admission) >= 0
