"""KV memory that a share pays for, and the steps from one allotment to another."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from world import SHAPE

from mirage.control.engine.counted import CountedMemory
from mirage.control.engine.way import Way
from mirage.control.rules import Rules
from mirage.control.targets import DoesNotFitError, base, is_sent, most_remapped, toward, unnumbered
from mirage.geometry import asleep_bytes, footprint
from mirage.protocol import Allotment
from scheduler.tenants import Tenant

pytestmark = pytest.mark.pure

told = partial(unnumbered, SHAPE)


targets = st.tuples(st.integers(0, 9), st.sampled_from([1, 2]), st.integers(0, 60)).map(
    lambda drawn: told(drawn[0], drawn[1] if drawn[0] else 0, drawn[2])
)


@given(targets, targets, st.integers(0, 900))
def test_what_fits_is_where_the_way_of_an_engine_leads(now, target, spare) -> None:
    limit = max(now.grant_bytes, target.grant_bytes) + spare
    held = CountedMemory(SHAPE, now.layers_remapped, now.stream_slots, 0, now.kv_extents, limit)
    for move in Way(held).moves_to(target):
        held.make(move)
    assert toward(SHAPE, now, target, limit) == told(
        held.layers_remapped, held.stream_slots, held.extents
    )


def test_a_share_holds_all_layers_and_kv_in_the_rest() -> None:
    assert base(Tenant("a", 50), SHAPE, 2 * 1700 + 98) == told(0, 0, 10)
    assert base(Tenant("a", 50), SHAPE, 10**9) == told(0, 0, 200)


def test_shares_never_add_up_to_more_than_the_device() -> None:
    for shares in ([100 / 3] * 3, [35.0, 35.0, 30.0], [33.3, 33.3, 33.4], [0.1] * 1000):
        for device in (10**9 + 7, 102_650_000_001, 3):
            total = sum(Tenant("x", share).share_bytes(device) for share in shares)
            assert device - len(shares) - device // 10**6 <= total <= device
    assert Tenant("x", 100).share_bytes(1_234_567) == 1_234_567


def test_a_model_that_does_not_fit_is_named() -> None:
    with pytest.raises(DoesNotFitError, match=r"'big' needs 1300 bytes .* 25 % is 1299 bytes"):
        base(Tenant("big", 25), SHAPE, 1299 * 4)
    assert base(Tenant("big", 25), SHAPE, 1300 * 4) == told(0, 0, 2)


@pytest.mark.parametrize(
    ("percent", "floor", "stream_slots", "most"),
    [
        (75, 2, 1, 9),
        (75, 2, 2, 8),
        (75, 2, "dynamic", 8),
        (100, 2, 1, 9),
        (50, 2, "dynamic", 6),
        (100, 11, "dynamic", 0),
        (0, 1, 1, 0),
    ],
)
def test_layers_that_may_ever_be_given(percent: float, floor: int, stream_slots, most: int) -> None:
    remap = Rules(max_percent=percent, stream_slots=stream_slots)
    assert most_remapped(Tenant("a", 50, floor_layers=floor), SHAPE, remap) == most


@pytest.mark.parametrize(
    ("own", "movable", "most"),
    [(None, 12, 9), (50.0, 12, 6), (100.0, 12, 9), (0.0, 12, 0), (None, 0, 0), (100.0, 0, 0)],
)
def test_a_tenants_own_percentage_and_layers_that_stay(
    own: float | None, movable: int, most: int
) -> None:
    tenant = Tenant("a", 50, floor_layers=1, max_percent=own)
    shape = structs.replace(SHAPE, movable_layers=movable)
    assert most_remapped(tenant, shape, Rules(max_percent=75)) == most


def nbytes(held: Allotment) -> int:
    assert held.grant_bytes == footprint(SHAPE, held.layers_remapped, held.kv_extents)
    return held.grant_bytes


@given(targets, targets, st.integers(0, 1000))
def test_a_step_stays_within_its_limit_and_between_its_ends(now, target, spare) -> None:
    limit = nbytes(now) + spare
    step = toward(SHAPE, now, target, limit)
    assert nbytes(step) <= limit
    assert (
        target.layers_remapped
        <= step.layers_remapped
        <= max(now.layers_remapped, target.layers_remapped)
    )
    assert min(now.kv_extents, target.kv_extents) <= step.kv_extents <= target.kv_extents
    assert step == target or nbytes(step) > limit - max(SHAPE.layer_bytes, SHAPE.extent_bytes)
    assert nbytes(target) > limit or step == target
    if step.layers_remapped != target.layers_remapped:
        assert (step.stream_slots, step.kv_extents) == (now.stream_slots, target.kv_extents) or (
            step.stream_slots == now.stream_slots and limit - nbytes(step) < SHAPE.extent_bytes
        )


def test_kv_comes_before_layers() -> None:
    assert toward(SHAPE, told(4, 2, 2), told(0, 0, 6), 1100) == told(4, 2, 6)
    assert toward(SHAPE, told(4, 2, 2), told(0, 0, 6), 1250) == told(3, 2, 6)
    assert toward(SHAPE, told(0, 0, 10), told(3, 2, 16), 1700) == told(3, 2, 16)


def test_the_way_there_says_what_the_end_says() -> None:
    wanted = told(0, 0, 6, recall=True, lent="in turns")
    part = toward(SHAPE, told(4, 2, 2), wanted, 1100)
    assert part == told(4, 2, 6, recall=True, lent="in turns")


def test_an_allotment_without_a_number_is_sent_once_whatever_its_number_is_then() -> None:
    wanted = told(3, 2, 16, 5, recall=True)
    assert wanted.revision == 0
    sent = structs.replace(wanted, revision=7)
    assert is_sent(sent, wanted) and is_sent(sent, sent)
    changed = {
        "stream_slots": 1,
        "kv_extents": 17,
        "open_extents": None,
        "recall": False,
        "experts": 1,
    }
    changed["lent"] = True
    for field, value in changed.items():
        assert not is_sent(sent, structs.replace(wanted, **{field: value}))


@pytest.mark.parametrize(
    ("changed", "nbytes"),
    [
        ({}, SHAPE.fixed_bytes + SHAPE.extent_bytes),
        ({"max_extents": 0, "min_extents": 0}, SHAPE.fixed_bytes),
        (
            {"movable_layers": 0},
            SHAPE.fixed_bytes + SHAPE.layers * SHAPE.layer_bytes + SHAPE.extent_bytes,
        ),
    ],
)
def test_an_engine_that_is_asleep_holds_what_never_leaves_it(
    changed: dict[str, int], nbytes: int
) -> None:
    assert asleep_bytes(structs.replace(SHAPE, **changed)) == nbytes


@pytest.mark.parametrize("awake", [told(0, 0, 20), told(3, 2, 9)])
def test_the_way_to_sleep_and_back_leads_over_nothing_else(awake: Allotment) -> None:
    asleep = Allotment(0, SHAPE.layers, 0, 1, asleep_bytes(SHAPE), asleep=True)
    away = toward(SHAPE, awake, asleep, awake.grant_bytes)
    assert (away.layers_remapped, away.stream_slots, away.kv_extents) == (SHAPE.layers, 0, 1)
    assert away.grant_bytes == asleep_bytes(SHAPE)
    assert toward(SHAPE, asleep, awake, awake.grant_bytes) == awake
