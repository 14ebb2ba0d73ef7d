"""A device that refuses memory within grants is asked for less, and less often."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.engine.shortage import FIRST_S, LONGEST_S, Shortage

pytestmark = pytest.mark.pure


def rounds(device: int, wanted: int, seconds: float, each_s: float = 0.005) -> tuple[int, int]:
    """Number of things got from a device that has `device` of them, and of those created in vain,
    if one round follows each `each_s` for `seconds`.
    """
    shortage, had, in_vain = Shortage(), 0, 0
    for number in range(int(seconds / each_s)):
        asked = shortage.most(wanted - had, number * each_s)
        if not asked:
            continue
        if asked > device - had:
            in_vain += device - had
            shortage.refused(asked, number * each_s)
        else:
            shortage.had(asked, wanted - had)
            had += asked
    return had, in_vain


def test_while_nothing_is_short_everything_is_asked_for() -> None:
    assert Shortage().most(50, 0.0) == 50 and Shortage().most(-3, 0.0) == 0


def test_after_a_refusal_it_waits_and_asks_for_half() -> None:
    shortage = Shortage()
    shortage.refused(8, 10.0)
    assert shortage.lasts and shortage.most(8, 10.0) == 0
    assert shortage.most(8, 10.0 + FIRST_S) == 4
    shortage.had(4, 8)
    assert shortage.lasts and shortage.most(4, 10.0 + FIRST_S) == 4
    shortage.had(4, 4)
    assert not shortage.lasts


def test_waits_grow_up_to_the_longest() -> None:
    shortage, now = Shortage(), 0.0
    for _ in range(20):
        shortage.refused(1, now)
        assert shortage.most(5, now + LONGEST_S) == 1
        now += LONGEST_S
    assert shortage.most(5, now - LONGEST_S / 2) == 0


@given(wanted=st.integers(1, 400), part=st.floats(0, 1))
def test_what_the_device_has_is_had_without_a_storm(wanted: int, part: float) -> None:
    device = int(wanted * part)
    had, in_vain = rounds(device, wanted, seconds=60)
    assert had == device
    assert in_vain <= 3 * wanted, "without waits it would be thousands of times as much"
