"""Demand of an engine's requests for KV memory, and what newcomers leave free of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.config import Kept
from mirage.control.answers import Answered, growth_to_come
from mirage.control.demand import Demand
from mirage.control.engine.wants import LEFT, Wants
from mirage.control.engine.way import Lent
from mirage.control.growth_hold import GrowthHold
from mirage.facts import KVGroup, KVGroups

pytestmark = pytest.mark.pure

GROUPS = KVGroups((KVGroup("full_attention", 4, 16, 64),))


def wants(kept="soon", hold=None) -> Wants:
    return Wants(GROUPS, 4, 8, 2, kept, hold or GrowthHold(1.0, lambda: 0.0))


def test_what_is_lacking_is_wanted_beside_what_is_asked_ahead() -> None:
    hold = GrowthHold(1.0, lambda: 0.0)
    before = wants(hold=hold).demand(used_blocks=30, running=3, starting=5)
    assert (before.used, before.admission - before.growth) == (30, 5)
    hold.lacks(100, free=0)
    assert hold.end_step()
    after = wants(hold=hold).demand(used_blocks=30, running=3, starting=5)
    assert after.growth >= 130 > before.growth
    assert wants().demand(used_blocks=30, running=0, starting=0) == Demand(30, 30, 30)


def left_free(kept: Kept, running: int, open_extents: int | None, asked: Demand, lent: Lent) -> int:
    """Blocks that newcomers leave of ten extents, before anything was answered."""
    return wants(kept).left_free(
        running, 10, open_extents, lambda: asked, lent=lent, answered=Answered()
    )


@pytest.mark.parametrize(("kept", "left"), [("nothing", 0), ("soon", 1), ("asked", 8 + 10)])
def test_newcomers_leave_free_what_is_closed_to_them(kept, left) -> None:
    """Two extents of four blocks are closed. Three requests take a block in half of eight steps."""
    asked = Demand(30, 40, 50)
    assert left_free(kept, 3, 8, asked, "nothing") == left
    open_to_all = left - 8 if kept == "asked" else left
    assert left_free(kept, 3, None, asked, "nothing") == open_to_all
    assert left_free(kept, 3, None, asked, "at once") == open_to_all


@given(st.integers(0, 100), st.integers(0, 1000))
def test_newcomers_leave_more_while_layers_are_lent_however_demand_is_rounded(
    running: int, growth: int
) -> None:
    """Newcomers leave the blocks of twice the eight steps at once, and in turns all of a demand."""
    asked = Demand(30, 30 + growth, 50 + growth)
    at_once = left_free("lent", running, None, asked, "at once")
    assert at_once == wants().groups.grown(16 * running)
    assert left_free("lent", running, 8, asked, "at once") == at_once + 8
    assert left_free("lent", running, None, asked, "in turns") == left_free(
        "asked", running, None, asked, "in turns"
    )
    assert left_free("lent", running, None, asked, "nothing") == left_free(
        "soon", running, None, asked, "nothing"
    )


@pytest.mark.parametrize("lent", ["at once", "in turns"])
def test_newcomers_leave_the_growth_that_is_to_be_expected_while_layers_are_lent(
    lent: Lent,
) -> None:
    """Forty requests with a block of sixteen tokens each, and answers of 320 tokens."""

    def left(used: int, lent: Lent) -> int:
        def wanted() -> Demand:
            return Demand(used, used + 1, used + 1)

        answered = Answered(tokens=320 * 50, ended=49)
        return wants("lent").left_free(40, 100, None, wanted, lent=lent, answered=answered)

    assert left(40, lent) == int(LEFT * growth_to_come(40, 40 * 20)) > 100
    assert left(40, "nothing") == 10, "half of eight steps"
    assert left(40, "in turns that drain") == 1, "all that is asked for"
    assert left(800, lent) == (40 if lent == "at once" else 1), "old ones end as others grow"
