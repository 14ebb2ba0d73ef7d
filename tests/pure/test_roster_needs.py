"""Bytes of tenants awake and asleep, the number of tenants that fit, and tenants that never fit."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from world import SHAPE as USUAL

from mirage.control.roster.needs import (
    NeverServedError,
    StateBytes,
    SwitchSpeeds,
    at_once,
    check_served,
    state_bytes,
)
from mirage.control.roster.specs import TenantSpec
from mirage.control.rules import Rules
from mirage.control.targets import DoesNotFitError, most_remapped
from mirage.geometry import footprint
from tests.examples import examples

pytestmark = pytest.mark.pure
SHAPE = structs.replace(USUAL, fixed_bytes=300, min_extents=4)
RULES = Rules()
DEVICE = 10_000


def bytes_of(share: float | None = None, device: int = DEVICE, **spec: object) -> StateBytes:
    return state_bytes(TenantSpec("a", share, **spec), SHAPE, device, RULES)  # type: ignore[arg-type]


def test_auto_holds_all_layers_and_the_longest_request() -> None:
    own = bytes_of()
    assert own.awake == own.start == footprint(SHAPE, 0, 4) == 300 + 12 * 100 + 4 * 50
    assert own.least == footprint(SHAPE, 9, 4)
    assert (own.asleep, own.loaded, own.yields) == (350, 1200, own.awake - 350)


def test_a_share_may_be_more() -> None:
    own = bytes_of(30.0)
    assert (own.awake, own.start, own.loaded) == (3000, 3000, 1200)


def test_a_share_may_hold_fewer_layers_and_borrows_them_to_start() -> None:
    own = bytes_of(10.0)
    assert (own.awake, own.start) == (1000, footprint(SHAPE, 0, 4))
    assert own.loaded == 1000 - 300 - 200


def test_the_least_share_by_a_byte() -> None:
    away = most_remapped(TenantSpec("a").entitled, SHAPE, RULES)
    least = footprint(SHAPE, away, 4)
    assert bytes_of(100.0, least).awake == least
    with pytest.raises(DoesNotFitError, match=r"'a' needs .* 1 are missing"):
        bytes_of(100.0, least - 1)


def test_layers_that_stay_are_in_the_least() -> None:
    whole = footprint(SHAPE, 0, 4)
    with pytest.raises(DoesNotFitError, match="1 are missing"):
        bytes_of(100.0, whole - 1, max_percent=0.0)


def test_who_can_never_start_hears_by_how_many_bytes() -> None:
    own = StateBytes(awake=60, least=40, asleep=10, start=70, loaded=40)
    check_served("a", own, [], 70)
    with pytest.raises(NeverServedError, match=r"'a' .* takes 70 bytes, and .* 69: 1 are missing"):
        check_served("a", own, [], 69)
    with pytest.raises(NeverServedError, match=r"beside 60 of tenants that are pinned.*: 30 are"):
        check_served("a", own, [own], 100)


BYTES = st.builds(
    lambda asleep, more: StateBytes(asleep + more, asleep, asleep, asleep + more, more),
    st.integers(0, 30),
    st.integers(0, 60),
)


@given(st.lists(BYTES, max_size=7), st.integers(0, 250))
@examples(400)
def test_how_many_can_be_awake(every: list[StateBytes], device: int) -> None:
    def fits(awake: tuple[int, ...]) -> bool:
        held = (b.awake if i in awake else b.asleep for i, b in enumerate(every))
        return sum(held) <= device

    found = at_once(every, device)
    numbers = range(len(every) + 1)
    some = [k for k in numbers if any(map(fits, combinations(range(len(every)), k)))]
    any_ = [k for k in numbers if all(map(fits, combinations(range(len(every)), k)))]
    assert found.at_most == max(some, default=0)
    assert found.surely == max(any_, default=0)
    assert (found.missing > 0) == (not fits(()))


def test_times_are_bytes_over_the_link() -> None:
    own = StateBytes(awake=100, least=90, asleep=20, start=100, loaded=50)
    times = SwitchSpeeds(link_bytes_s=100, disk_bytes_s=10, wake_s=0.25).times(own)
    assert (times.sleep_s, times.wake_s) == (0.1, 0.75)
    assert (times.warm_s, times.cold_s) == (5.5, 37.0)
    copied = SwitchSpeeds(link_bytes_s=100, disk_bytes_s=10, copies_out=True).times(own)
    assert copied.sleep_s == pytest.approx(0.6)


def test_a_wake_takes_as_long_as_the_slower_of_its_memory_and_its_weights() -> None:
    own = StateBytes(awake=100, least=90, asleep=20, start=100, loaded=50)
    guessed = SwitchSpeeds(link_bytes_s=100, disk_bytes_s=10, wake_s=0.25).times(own)
    assert guessed.measured(0.0, 0.0) == guessed, "it has not slept yet"
    quick = guessed.measured(0.375, 0.125)
    assert (quick.sleep_s, quick.wake_s) == (0.375, 0.75), "loaded while memory came"
    slow = quick.measured(0.0, 2.0)
    assert (slow.sleep_s, slow.wake_s) == (0.375, 2.25)
    assert slow.measured(0.0, 0.125).wake_s == 0.75, "the newest counts"
    assert (slow.stop_s, slow.warm_s, slow.cold_s) == (
        guessed.stop_s,
        guessed.warm_s,
        guessed.cold_s,
    )
