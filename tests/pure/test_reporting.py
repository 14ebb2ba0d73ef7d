"""The report of an engine: what it holds, what it wants in extents, what it counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.demand import Demand
from mirage.control.reporting import HeldMemory, LayerTimes, make_report
from mirage.counters import Counters
from mirage.protocol import Report
from mirage.units import ceil_div

pytestmark = pytest.mark.pure

COUNTED = {name: 9 + number for number, name in enumerate(Counters.__struct_fields__)}
"""Values of all counters, each different."""


def report(wanted: Demand, used: int = 7, usable: int = 19, extent_blocks: int = 4) -> Report:
    return make_report(
        revision=3,
        holds_turn=True,
        held=HeldMemory(
            1000, 2, 1, 5, -(-(used + 1) // extent_blocks) if used else 0, used, usable
        ),
        wanted=wanted,
        extent_blocks=extent_blocks,
        running=6,
        waiting=8,
        counters=Counters(**COUNTED),
        times=LayerTimes(0.25, 0.125, sleep_s=0.5, wake_s=0.75, step_s=0.0625),
    )


def test_everything_is_where_it_belongs() -> None:
    assert report(Demand(7, 9, 15)) == Report(
        revision=3,
        holds_turn=True,
        held_bytes=1000,
        layers_remapped=2,
        stream_slots=1,
        kv_extents=5,
        kv_used_extents=2,
        kv_usable_extents=5,
        growth_extents=3,
        admission_extents=4,
        running=6,
        waiting=8,
        kv_used_blocks=7,
        kv_blocks=19,
        **COUNTED,
        layer_load_s=0.25,
        layer_compute_s=0.125,
        sleep_s=0.5,
        wake_s=0.75,
        step_s=0.0625,
    )


def test_no_blocks_are_never_fewer_than_none() -> None:
    empty = report(Demand(), used=0, usable=-1)
    assert (empty.kv_blocks, empty.kv_usable_extents) == (0, 0)


def test_extents_that_retire_count_while_requests_sit_on_them() -> None:
    assert report(Demand(7, 9, 15), used=7, usable=3).kv_usable_extents == 2
    assert report(Demand(7, 9, 15), used=7, usable=15).kv_usable_extents == 4


@given(
    used=st.integers(0, 50),
    more=st.integers(0, 50),
    beyond=st.integers(0, 50),
    per_extent=st.integers(1, 9),
)
def test_what_is_wanted_grows_from_what_is_used(used, more, beyond, per_extent) -> None:
    wanted = Demand(used, used + more, used + more + beyond)
    found = report(wanted, used, 100, per_extent)
    assert found.kv_used_extents <= found.growth_extents <= found.admission_extents
    levels = {used + more: found.growth_extents, used + more + beyond: found.admission_extents}
    for blocks, extents in levels.items():
        assert extents in (found.kv_used_extents, ceil_div(blocks + 1, per_extent))
    if used + more:  # the null block lies in one of them
        assert found.growth_extents * per_extent >= used + more + 1
