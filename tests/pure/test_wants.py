"""Demand of an engine's requests for KV memory, and what newcomers leave free of it."""

from __future__ import annotations

import pytest

from mirage.control.demand import Demand
from mirage.control.engine.wants import Wants
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

    assert wants(kept).left_free(3, 10, 8, wanted, lent=False) == left
    open_to_all = left - 8 if kept == "asked" else left
    assert wants(kept).left_free(3, 10, None, wanted, lent=False) == open_to_all
    assert wants(kept).left_free(3, 10, None, wanted, lent=True) == open_to_all


@pytest.mark.parametrize(("lent", "as_if"), [(False, "soon"), (True, "asked")])
def test_newcomers_leave_more_while_layers_are_lent(lent: bool, as_if: str) -> None:
    def wanted() -> Demand:
        return Demand(30, 40, 50)

    left = wants("lent").left_free(3, 10, None, wanted, lent=lent)
    assert left == wants(as_if).left_free(3, 10, None, wanted, lent=lent)
