"""Lengths of steps: one after the other, two in flight, and with pauses between them."""

from __future__ import annotations

import pytest

from mirage.control.step_periods import StepPeriods

pytestmark = pytest.mark.pure


def test_a_period_has_all_between_two_steps() -> None:
    periods = StepPeriods()
    assert periods.beside_s(0.0) == 0.0
    for number in range(20):  # 8 ms in the step, 2 ms until the next one is scheduled
        periods.begins(0.010 * number)
        periods.ends(1, 0.010 * number + 0.008)
    assert periods.beside_s(0.0) == pytest.approx(0.010, rel=0.02)
    assert periods.beside_s(0.001) == pytest.approx(0.009, rel=0.02)


def test_two_steps_in_flight_count_once() -> None:
    periods = StepPeriods()
    periods.begins(0.0)
    for number in range(1, 20):
        periods.begins(0.010 * number - 0.009)
        periods.ends(1, 0.010 * number)
    assert periods.beside_s(0.0) == pytest.approx(0.010)


def test_rests_do_not_count() -> None:
    periods = StepPeriods()
    for number in range(20):
        periods.begins(100.0 * number)
        periods.ends(4, 100.0 * number + 0.012)
        periods.rests()
    assert periods.beside_s(0.001) == pytest.approx(0.008)


def test_the_last_steps_count() -> None:
    periods, now = StepPeriods(), 0.0
    for step_s in [0.5] * 50 + [0.01] * 2000:
        periods.begins(now)
        now += step_s
        periods.ends(1, now)
    assert periods.beside_s(0.0) == pytest.approx(0.01, rel=0.01)


def test_tokens_never_take_more_than_all() -> None:
    periods = StepPeriods()
    periods.begins(0.0)
    periods.ends(100, 0.01)
    assert periods.beside_s(1.0) == 0.0
