"""T_c is what the device computes: neither gaps of the host nor slices of others make it longer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.compute_time import MOST_PENDING, RECENT, ComputeTime, Smoothed, Undisturbed
from mirage.control.hiding import largest_hidden

pytestmark = pytest.mark.pure
LAYERS, STEP_S, LOAD_S = 40, 0.008, 0.0012
GAP_S, SLICE_S = 0.0006, 0.002
"""Seconds for which the device waits for the host at each streamed layer, and for which another
process has the device.
"""


def ran(time: ComputeTime, seconds: Iterable[float], streamed: int = 0) -> float:
    for one in seconds:
        time.begin(streamed)
        time.end(one)
    return time.step_s


def with_gaps(streamed: int, count: int = 4 * RECENT, step_s: float = STEP_S) -> list[float]:
    return [step_s + GAP_S * streamed] * count


@pytest.mark.parametrize("steps", [1, RECENT // 2, 4 * RECENT])
def test_gaps_of_streamed_layers_are_not_compute(steps: int) -> None:
    time = Undisturbed()
    ran(time, with_gaps(0))
    for streamed in (1, 2, 3, 5, 8, 13, 8, 2, 5, 12):
        assert ran(time, with_gaps(streamed, steps), streamed) == pytest.approx(STEP_S)
    assert ran(time, with_gaps(0)) == pytest.approx(STEP_S)


@pytest.mark.parametrize("kind", [Undisturbed, Smoothed])
def test_the_controller_and_the_host_do_not_drive_each_other_up(
    kind: Callable[[], ComputeTime],
) -> None:
    """In each of 20 rounds as many layers are given as hide behind the reported T_c. Gaps of the
    host must not raise T_c, or more layers would seem to hide each time.
    """
    time, remapped, slots = kind(), 0, 0
    ran(time, with_gaps(0))
    first = largest_hidden(LAYERS, LOAD_S, STEP_S / LAYERS)
    for _ in range(20):
        step_s = ran(time, with_gaps(remapped + slots), remapped + slots)
        remapped, slots = largest_hidden(LAYERS, LOAD_S, step_s / LAYERS)
    if kind is Undisturbed:
        assert (remapped, slots) == first
    else:
        assert remapped > first[0], "the control: gaps in T_c make more layers seem to hide"


def test_layers_that_streamed_too_shortly_are_learned_of_later() -> None:
    time = Undisturbed()
    ran(time, with_gaps(0))
    ran(time, with_gaps(13, 5), 13)
    assert ran(time, with_gaps(8), 8) == pytest.approx(STEP_S)


def test_slices_of_another_process_are_not_compute() -> None:
    time, chance = Undisturbed(), random.Random(0)
    for streamed in (0, 4):
        steps = [s + SLICE_S * (chance.random() < 0.5) for s in with_gaps(streamed, 200)]
        assert ran(time, steps, streamed) == pytest.approx(STEP_S)


@pytest.mark.parametrize("factor", [0.4, 0.9, 1.1, 3.0])
@pytest.mark.parametrize("streamed", [0, 6])
def test_a_batch_that_computes_longer_or_shorter_is_followed(streamed: int, factor: float) -> None:
    time = Undisturbed()
    ran(time, with_gaps(0))
    ran(time, with_gaps(streamed), streamed)
    slower = with_gaps(streamed, RECENT, factor * STEP_S)
    assert ran(time, slower, streamed) == pytest.approx(factor * STEP_S)


def test_a_batch_that_grows_with_what_streams_is_believed_when_nothing_does() -> None:
    time = Undisturbed()
    ran(time, with_gaps(0))
    assert ran(time, with_gaps(4, step_s=2 * STEP_S), 4) <= 2 * STEP_S
    assert ran(time, with_gaps(0, RECENT, 2 * STEP_S)) == pytest.approx(2 * STEP_S)


def test_prompts_between_decode_steps_do_not_count() -> None:
    steps = [10 * STEP_S if n % 4 == 0 else STEP_S for n in range(100)]
    assert ran(Undisturbed(), steps) == pytest.approx(STEP_S)


def test_one_that_always_streams_is_measured_as_it_is() -> None:
    assert ran(Undisturbed(), with_gaps(3), 3) == pytest.approx(STEP_S + 3 * GAP_S)


@given(st.lists(st.tuples(st.integers(0, 12), st.floats(0, 1)), max_size=200))
def test_it_never_tells_more_than_was_measured_lately(steps: list[tuple[int, float]]) -> None:
    time, seen = Undisturbed(), list[float]()
    for streamed, seconds in steps:
        ran(time, [seconds], streamed)
        seen.append(seconds)
        assert 0 <= time.step_s <= max(seen)


def test_times_come_later_and_for_the_steps_as_they_began() -> None:
    time = Undisturbed()
    for streamed in (0, 5):
        for _ in range(RECENT):
            time.begin(streamed)
    time.begin(7)
    time.fail()
    for seconds in with_gaps(0, RECENT) + with_gaps(5, RECENT):
        time.end(seconds)
    time.end(99.0)
    assert time.step_s == pytest.approx(STEP_S)


def test_a_device_that_hangs_does_not_pile_up_steps() -> None:
    time = Undisturbed()
    for _ in range(3 * MOST_PENDING):
        time.begin(0)
    assert len(time._begun) == MOST_PENDING


def test_a_host_is_measured_as_the_mean_of_some_steps() -> None:
    time = Smoothed()
    assert ran(time, [2.0]) == 2.0
    assert ran(time, [1.0] * 60, 9) == pytest.approx(1.0, abs=0.01)
