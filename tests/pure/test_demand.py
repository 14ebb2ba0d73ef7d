"""Demand of an engine for KV memory, as the engine counts it and as the controller reads it from a
report.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.demand import (
    Demand,
    blocks_ahead,
    blocks_soon,
    demand,
    growth_level,
    in_extents,
    kept_free,
    lacks_growth,
    still_wanted,
)
from mirage.facts import KVGroup, KVGroups
from mirage.protocol import Report

GROUPS = KVGroups((KVGroup("full_attention", 12, 32, 100),))

pytestmark = pytest.mark.pure

IDLE = {"used_blocks": 0, "due_blocks": 0, "ahead": 0, "starting": 0}
BLOCKS = st.integers(0, 300)


def report(used: int = 0, usable: int = 10, growth: int = 0, admission: int = 0) -> Report:
    return Report(
        revision=0,
        holds_turn=True,
        held_bytes=0,
        layers_remapped=0,
        stream_slots=1,
        kv_extents=usable,
        kv_used_extents=used,
        kv_usable_extents=max(used, usable),
        growth_extents=growth,
        admission_extents=max(growth, admission),
    )


def test_an_idle_engine_wants_nothing() -> None:
    assert blocks_ahead(GROUPS, 0, 16, 2) == 0
    assert demand(**IDLE) == Demand(0, 0, 0)
    assert still_wanted(report()) == (0, 0)


def test_running_requests_want_their_next_steps_and_the_headroom() -> None:
    ahead = blocks_ahead(GROUPS, 8, lookahead_steps=16, headroom_blocks=2)
    assert ahead == 8 * 16 // 32 + 2
    wanted = demand(**IDLE | {"used_blocks": 40, "ahead": ahead})
    assert wanted.used == 40 and wanted.growth >= 40 + ahead
    assert wanted.admission == wanted.growth


def test_what_is_missing_comes_on_top() -> None:
    wanted = demand(**IDLE | {"used_blocks": 40, "ahead": 6, "due_blocks": 3})
    assert wanted.growth >= 40 + 3 + 6
    assert demand(**IDLE | {"due_blocks": 3}).growth == 3


def test_only_requests_that_could_start_count_for_admission() -> None:
    waiting = [31, 32, 64]
    assert GROUPS.to_start(waiting, 8) == 1 + 2 + 3
    assert GROUPS.to_start(waiting, 2) == 1 + 2
    assert GROUPS.to_start(waiting, -1) == 0
    assert demand(**IDLE | {"starting": 6}) == Demand(0, 0, 6)


def test_newcomers_leave_half_of_the_next_steps() -> None:
    assert blocks_soon(GROUPS, 0, 16) == 0
    assert blocks_soon(GROUPS, 8, 16) == 2
    assert blocks_soon(GROUPS, 9, 16) == 3


def test_newcomers_leave_what_layers_pay_for_and_what_is_asked_for_the_running() -> None:
    assert kept_free(usable_blocks=43, open_blocks=40, ahead=0) == 3
    assert kept_free(usable_blocks=43, open_blocks=40, ahead=5) == 8
    assert kept_free(usable_blocks=30, open_blocks=40, ahead=5) == 5
    assert kept_free(usable_blocks=43, open_blocks=None, ahead=0) == 0


@given(used=BLOCKS, ahead=st.integers(1, 60))
def test_the_level_rises_in_steps_and_leaves_what_is_ahead(used: int, ahead: int) -> None:
    level = growth_level(used, ahead)
    assert used + ahead <= level < used + 6 * ahead
    assert growth_level(used + 1, ahead) >= level
    levels = {growth_level(used + more, ahead) for more in range(2 * ahead)}
    assert len(levels) <= 2


@given(blocks=BLOCKS, per_extent=st.integers(1, 8))
def test_extents_hold_the_blocks_and_the_null_block(blocks: int, per_extent: int) -> None:
    extents = in_extents(blocks, per_extent)
    assert blocks + 1 <= extents * per_extent or not blocks
    assert extents == 0 or (extents - 1) * per_extent < blocks + 1
    assert bool(extents) == bool(blocks)


# -- what the controller makes of a report ------------------------------------------------


def test_what_is_asked_for_counts_in_total() -> None:
    asks = report(used=7, growth=12, admission=17)
    assert still_wanted(asks) == (12, 17)
    assert lacks_growth(asks) and not lacks_growth(report(7, growth=10))


@given(used=st.integers(0, 40), growth=BLOCKS, admission=BLOCKS, one=BLOCKS, other=BLOCKS)
def test_what_is_granted_does_not_change_what_is_wanted(
    used: int, growth: int, admission: int, one: int, other: int
) -> None:
    """The controller reads the same demand from a report, however many extents the engine holds."""
    growth = max(used, growth)
    for usable in (one + 1, other + 1):
        asked = report(used, usable, growth, admission)
        assert still_wanted(asked) == (growth, max(growth, admission))


def test_extents_in_use_beyond_the_usable_ones_count() -> None:
    """An engine that shrinks uses 12 extents, of which only 10 are usable. It wants the reported
    total of 13, not 13 in addition to the two that it will give back.
    """
    draining = report(used=12, usable=10, growth=13)
    assert lacks_growth(draining)
    assert still_wanted(draining) == (13, 13)


def test_what_a_newer_allotment_takes_is_not_wanted_by_an_older_report() -> None:
    """A report was sent before the engine saw an allotment with less. Its wish is cut to that
    allotment, but not below what is in use. Otherwise reports and allotments under way would undo
    each other for ever.
    """
    running = report(used=5, usable=10, growth=10)
    wanted = {allotted: still_wanted(running, allotted)[0] for allotted in (None, 9, 20, 2)}
    assert wanted == {None: 10, 9: 9, 20: 10, 2: 5}, "never less than is in use"
    waiting = report(used=5, usable=10, growth=7, admission=9)
    assert still_wanted(waiting, allotted=6) == (6, 8)
    asking = report(used=5, usable=10, growth=12, admission=15)
    assert still_wanted(asking, allotted=6) == (12, 15), "it still asks"
