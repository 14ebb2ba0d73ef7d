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

MANY = 10_000
"""KV extents of lent layers that limit nothing."""
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


def left_free(
    kept: Kept,
    running: int,
    open_extents: int | None,
    asked: Demand,
    lent: Lent,
    lent_extents: int = MANY,
) -> int:
    """Number of blocks of ten extents that new requests must leave free, before any answer has
    ended.
    """
    return wants(kept).left_free(
        running,
        10,
        open_extents,
        lambda: asked,
        lent=lent,
        lent_extents=lent_extents,
        answered=Answered(),
    )


@pytest.mark.parametrize(("kept", "left"), [("nothing", 0), ("soon", 1), ("asked", 8 + 10)])
def test_newcomers_leave_free_what_is_closed_to_them(kept, left) -> None:
    """`open_extents` closes two extents of four blocks to new requests. These must leave those
    blocks free in addition to what `kept` asks.
    """
    asked = Demand(30, 40, 50)
    assert left_free(kept, 3, 8, asked, "nothing") == left
    open_to_all = left - 8 if kept == "asked" else left
    assert left_free(kept, 3, None, asked, "nothing") == open_to_all
    assert left_free(kept, 3, None, asked, "at once") == open_to_all


@given(st.integers(0, 100), st.integers(0, 1000))
def test_newcomers_leave_more_while_layers_are_lent_however_demand_is_rounded(
    running: int, growth: int
) -> None:
    """While layers are lent "at once", new requests leave free the blocks of twice the eight steps
    that are looked ahead. While they are lent "in turns", they leave the whole demand.
    """
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
    """Forty running requests have one block of 16 tokens each, and ended answers had 320 tokens.
    While layers are lent, new requests leave free a part of the growth that this predicts.
    """

    def left(used: int, lent: Lent, lent_extents: int = MANY) -> int:
        def wanted() -> Demand:
            return Demand(used, used + 1, used + 1)

        answered = Answered(tokens=320 * 50, ended=49)
        return wants("lent").left_free(
            40, 100, None, wanted, lent=lent, lent_extents=lent_extents, answered=answered
        )

    assert left(40, lent) == int(LEFT * growth_to_come(40, 40 * 20)) > 100
    assert left(40, "nothing") == 10, "half of eight steps"
    assert left(40, "in turns that drain") == 1, "all that is asked for"
    assert left(800, lent) == (40 if lent == "at once" else 1), "old ones end as others grow"
    assert left(40, "in turns", 0) == left(40, "in turns"), "lent layers limit it at once only"
    assert [left(40, "at once", extents) for extents in (0, 3, 20)] == [10, 12, 80]


@given(st.integers(0, 100), st.integers(0, 1000), st.integers(0, 50))
def test_newcomers_at_once_leave_no_more_than_lent_layers_hold(
    running: int, growth: int, extents: int
) -> None:
    """A waiting request has at least the memory that it would have with all layers in place."""
    asked = Demand(30, 30 + growth, 50 + growth)
    at_once = left_free("lent", running, None, asked, "at once", extents)
    soon = left_free("lent", running, None, asked, "nothing")
    assert soon <= at_once <= max(soon, 4 * extents)
