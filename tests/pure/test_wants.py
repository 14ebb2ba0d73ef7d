"""Demand of an engine's requests for KV memory, and what newcomers leave free of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.demand import Demand
from mirage.control.engine.wants import Wants
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


@pytest.mark.parametrize(("kept", "left"), [("nothing", 0), ("soon", 1), ("asked", 8 + 10)])
def test_newcomers_leave_free_what_is_closed_to_them(kept, left) -> None:
    """Two extents of four blocks are closed. Three requests take a block in half of eight steps."""

    def wanted() -> Demand:
        return Demand(30, 40, 50)

    assert wants(kept).left_free(3, 10, 8, wanted, lent="nothing") == left
    open_to_all = left - 8 if kept == "asked" else left
    assert wants(kept).left_free(3, 10, None, wanted, lent="nothing") == open_to_all
    assert wants(kept).left_free(3, 10, None, wanted, lent="at once") == open_to_all


@given(st.integers(0, 100), st.integers(0, 1000))
def test_newcomers_leave_more_while_layers_are_lent_however_demand_is_rounded(
    running: int, growth: int
) -> None:
    """Newcomers leave the blocks of twice the eight steps at once, and in turns all of a demand."""

    def wanted() -> Demand:
        return Demand(30, 30 + growth, 50 + growth)

    def left(open_extents: int | None, *, lent: Lent) -> int:
        return wants("lent").left_free(running, 10, open_extents, wanted, lent=lent)

    assert left(None, lent="nothing") == wants("soon").left_free(
        running, 10, None, wanted, lent="nothing"
    )
    assert left(None, lent="at once") == wants().groups.grown(16 * running)
    assert left(8, lent="at once") == left(None, lent="at once") + 8
    assert left(None, lent="in turns") == wants("asked").left_free(
        running, 10, None, wanted, lent="in turns"
    )
