"""The wishes of an engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.demand import (
    Demand,
    blocks_ahead,
    blocks_soon,
    blocks_to_start,
    demand,
    growth_level,
    in_extents,
    kept_free,
)

pytestmark = pytest.mark.pure

IDLE = {"used_blocks": 0, "free_blocks": 0, "due_blocks": 0, "ahead": 0, "starting": 0}
BLOCKS = st.integers(0, 300)


def test_an_idle_engine_wants_nothing() -> None:
    assert blocks_ahead(0, 16, 2, 32) == 0
    assert demand(**IDLE) == Demand(0, 0, 0)


def test_running_requests_want_their_next_steps_and_the_headroom() -> None:
    ahead = blocks_ahead(8, lookahead_steps=16, headroom_blocks=2, block_tokens=32)
    assert ahead == 8 * 16 // 32 + 2
    wanted = demand(**IDLE | {"used_blocks": 40, "ahead": ahead})
    assert wanted.growth == wanted.ahead >= ahead
    served = demand(**IDLE | {"used_blocks": 40, "ahead": ahead, "free_blocks": wanted.growth})
    assert served == Demand(0, 0, wanted.ahead)


def test_what_is_missing_comes_on_top() -> None:
    wanted = demand(**IDLE | {"used_blocks": 40, "ahead": 6, "due_blocks": 3, "free_blocks": 1})
    assert wanted.growth >= 3 + 6 - 1
    assert demand(**IDLE | {"due_blocks": 3}).growth == 3
    assert demand(**IDLE | {"due_blocks": 3, "free_blocks": 2}).growth == 1


def test_only_requests_that_could_start_count_for_admission() -> None:
    waiting = [31, 32, 64]
    assert blocks_to_start(waiting, 8, 32) == 1 + 2 + 3
    assert blocks_to_start(waiting, 2, 32) == 1 + 2
    assert blocks_to_start(waiting, -1, 32) == 0
    assert demand(**IDLE | {"starting": 6}) == Demand(0, 6, 0, 6)
    assert demand(**IDLE | {"starting": 6, "free_blocks": 4}) == Demand(0, 2, 0, 6)


def test_newcomers_leave_half_of_the_next_steps() -> None:
    assert blocks_soon(0, 16, 32) == 0
    assert blocks_soon(8, 16, 32) == 2
    assert blocks_soon(9, 16, 32) == 3


def test_newcomers_leave_what_layers_pay_for_and_what_is_asked_for_the_running() -> None:
    nothing, some = Demand(), Demand(growth=1, admission=9, ahead=5, starting=7)
    assert kept_free(usable_blocks=43, open_blocks=40, wanted=nothing) == 3
    assert kept_free(usable_blocks=43, open_blocks=40, wanted=some) == 8
    assert kept_free(usable_blocks=30, open_blocks=40, wanted=some) == 5
    assert kept_free(usable_blocks=43, open_blocks=None, wanted=nothing) == 0


@given(used=BLOCKS, ahead=st.integers(1, 60))
def test_the_level_rises_in_steps_and_leaves_what_is_ahead(used: int, ahead: int) -> None:
    level = growth_level(used, ahead)
    assert used + ahead <= level < used + 6 * ahead
    assert growth_level(used + 1, ahead) >= level
    levels = {growth_level(used + more, ahead) for more in range(2 * ahead)}
    assert len(levels) <= 2


@given(used=BLOCKS, ahead=st.integers(0, 60), due=BLOCKS, first=BLOCKS, then=BLOCKS)
def test_what_is_granted_does_not_change_the_level(
    used: int, ahead: int, due: int, first: int, then: int
) -> None:
    facts = IDLE | {"used_blocks": used, "ahead": ahead, "due_blocks": due}
    one, other = (demand(**facts | {"free_blocks": free}) for free in (first, then))
    assert one.ahead == other.ahead
    assert used + one.ahead <= max(used + first + one.growth, used + first)


@given(used=BLOCKS, ahead=BLOCKS, starting=BLOCKS, first=BLOCKS, per_extent=st.integers(1, 8))
def test_extents_in_total_do_not_depend_on_the_grant(
    used: int, ahead: int, starting: int, first: int, per_extent: int
) -> None:
    """Granted what it asked for, an engine wants that still, and no more."""
    busy = -(-(used + 1) // per_extent) if used else 0
    facts = {"used_blocks": used, "due_blocks": 0, "ahead": ahead, "starting": starting}

    def wanted(free: int) -> Demand:
        return in_extents(demand(**facts, free_blocks=free), used, free, busy, per_extent)

    asks = wanted(first)
    have = -(-(used + first + 1) // per_extent) if used + first else 0
    total = max(have, busy) + asks.growth + asks.admission
    then = wanted(total * per_extent - 1 - used if total else 0)
    assert (then.growth, then.admission) == (0, 0)
    assert (then.ahead, then.starting) == (asks.ahead, asks.starting)
    if asks.growth or asks.admission:
        assert busy + asks.ahead + asks.starting == total


@given(ahead=st.integers(0, 64), starting=BLOCKS, used=BLOCKS, free=BLOCKS, due=BLOCKS)
def test_more_free_blocks_never_raise_the_wish(
    ahead: int, starting: int, used: int, free: int, due: int
) -> None:
    facts = {"ahead": ahead, "starting": starting, "used_blocks": used, "due_blocks": due}
    less = demand(**facts, free_blocks=free)
    more = demand(**facts, free_blocks=free + 1)
    assert more.growth <= less.growth and more.admission <= less.admission
    assert min(less.growth, less.admission, less.ahead) >= 0
