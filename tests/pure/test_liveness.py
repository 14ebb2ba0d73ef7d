"""Engines that are stuck or silent count as hung; slow and idle ones do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.liveness import COMPUTING_S, FIRST_STEP_S, LONGEST_STEP_S, RunningTime, Vitals
from mirage.protocol import BEAT_S, Allotment, Pulse, Report, Turn

pytestmark = pytest.mark.pure

HANG_S = 30.0


def report(revision: int = 0, steps: int = 1, holds: bool = True) -> Report:
    made = Report(revision, holds, 100, 0, 1, 10, 5)
    made.steps = steps
    return made


def beats(vitals: Vitals, begin: float, end: float, calls: int, requests: int) -> float:
    """Let an engine send the same sign of life again and again from `begin` on; return the time at
    which it first counts as hung, or `end`.
    """
    now = begin
    while now < end:
        vitals.pulsed(Pulse(calls, requests), now)
        if vitals.hang(now):
            return now
        now += BEAT_S
    return end


def test_silence_is_a_hang_with_or_without_work() -> None:
    for requests in (0, 3):
        vitals = Vitals(0.0, HANG_S, FIRST_STEP_S)
        vitals.pulsed(Pulse(1, requests), 1.0)
        assert vitals.hang(1.0 + HANG_S - 0.1) == ""
        assert vitals.hang(1.0 + HANG_S) == "no sign of life for 30 s"
        vitals.pulsed(Pulse(2, requests), 1.0 + HANG_S)  # continued in time
        assert vitals.hang(1.1 + HANG_S) == ""


def test_an_idle_engine_begins_no_step_and_lives() -> None:
    assert beats(Vitals(0.0, HANG_S), 0.0, 5000.0, calls=7, requests=0) == 5000.0


def test_an_engine_with_requests_that_begins_no_step_hangs() -> None:
    vitals = Vitals(0.0, HANG_S)
    vitals.reported(report(), 0.0)
    beats(vitals, 0.0, 100.0, calls=7, requests=0)
    assert beats(vitals, 100.0, 500.0, calls=7, requests=2) == pytest.approx(100 + HANG_S, abs=1)
    assert vitals.hang(131.0).endswith("s with 2 requests")


def test_a_first_step_may_compile_and_is_bounded() -> None:
    vitals = Vitals(0.0, HANG_S, FIRST_STEP_S)
    hung = beats(vitals, 0.0, 5000.0, calls=1, requests=1)
    assert hung == pytest.approx(HANG_S + FIRST_STEP_S, abs=1)


def test_the_longest_known_step_is_allowed_again_and_is_bounded() -> None:
    for known, more in ((20.0, 20.0), (29.0, 29.0)):
        vitals = Vitals(0.0, HANG_S)
        vitals.reported(report(), 0.0)
        beats(vitals, 0.0, known, calls=1, requests=1)
        hung = beats(vitals, known, 5000.0, calls=2, requests=1)
        assert hung == pytest.approx(known + HANG_S + more, abs=1)
    assert more < LONGEST_STEP_S


@pytest.mark.parametrize(("on_host", "allowed"), [(True, COMPUTING_S), (False, 0.0)])
def test_a_step_that_goes_on_computing_on_the_host_is_waited_for(
    on_host: bool, allowed: float
) -> None:
    for cpu, more in ((0.34, allowed), (0.02, 0.0)):
        vitals, now = Vitals(0.0, HANG_S, on_host=on_host), 0.0
        vitals.reported(report(), 0.0)
        while now < 2000.0 and not vitals.hang(now):
            vitals.pulsed(Pulse(1, 1, 50.0 + cpu * now), now)
            now += BEAT_S
        assert now == pytest.approx(HANG_S + more, abs=1)


@pytest.mark.parametrize("on_host", [True, False])
def test_a_step_that_waits_for_compilers_is_waited_for(on_host: bool) -> None:
    """Child processes compile while a step lasts, so the processor time of all rises and falls. The
    engine counts as hung only after the longer bound for computing engines.
    """
    vitals, now = Vitals(0.0, HANG_S, on_host=on_host), 0.0
    vitals.reported(report(), 0.0)
    beats(vitals, 0.0, 500.0, calls=1, requests=0)
    now = 500.0
    while now < 5000.0 and not vitals.hang(now):
        vitals.pulsed(Pulse(1, 1, 3.0, 0.3 * (now % 7)), now)
        now += BEAT_S
    assert now == pytest.approx(500 + HANG_S + COMPUTING_S, abs=1)


def test_a_long_step_is_told_from_an_engine_that_steps_on() -> None:
    vitals = Vitals(0.0, HANG_S, on_host=True)
    for second in range(10):
        vitals.pulsed(Pulse(second, 2), float(second))
        assert not vitals.is_in_step(float(second))
    beats(vitals, 10.0, 20.0, calls=10, requests=2)
    assert vitals.is_in_step(20.0)
    vitals.pulsed(Pulse(11, 2), 21.0)
    assert not vitals.is_in_step(21.0)
    assert not vitals.is_in_step(21.0) and beats(vitals, 21.0, 40.0, calls=11, requests=0) == 40.0
    assert not vitals.is_in_step(40.0)


def test_a_process_that_was_frozen_and_continued_made_no_long_step() -> None:
    vitals = Vitals(0.0, HANG_S)
    vitals.reported(report(), 0.0)
    vitals.pulsed(Pulse(1, 1), 1.0)
    vitals.pulsed(Pulse(2, 1), 26.0)
    assert beats(vitals, 26.0, 5000.0, calls=3, requests=1) == pytest.approx(26 + HANG_S, abs=1)


def test_an_order_that_is_not_obeyed_is_a_hang_of_an_idle_engine() -> None:
    orders = (Allotment(4, 0, 1, 4, 100), Turn(False))
    for order in orders:
        vitals = Vitals(0.0, HANG_S)
        vitals.reported(report(revision=3), 0.0)
        beats(vitals, 0.0, 50.0, calls=7, requests=0)
        vitals.told(order, 50.0)
        assert beats(vitals, 50.0, 500.0, calls=7, requests=0) == pytest.approx(80.0, abs=1)
        assert "yield its turn or memory" in vitals.hang(90.0)


def test_an_order_that_is_obeyed_is_none() -> None:
    vitals = Vitals(0.0, HANG_S)
    for order in (Allotment(4, 0, 1, 4, 100), Turn(False), Turn(False, drain=True)):
        vitals.told(order, 50.0)
        vitals.reported(report(revision=4, holds=False), 51.0)
        assert beats(vitals, 50.0, 500.0, calls=7, requests=0) == 500.0


def test_a_draining_turn_may_last_as_long_as_it_steps() -> None:
    vitals = Vitals(0.0, HANG_S)
    vitals.reported(report(), 0.0)
    vitals.told(Turn(False, drain=True), 1.0)
    for second in range(1, 1000):
        vitals.pulsed(Pulse(second, 2), float(second))
        assert vitals.hang(float(second)) == ""


@given(st.lists(st.floats(0.0, 1e5), min_size=1, max_size=50), st.floats(0.1, 10.0))
def test_a_pause_of_the_server_counts_for_little(gaps: list[float], most: float) -> None:
    clock, now = RunningTime(most), 1e6
    clock.tick(now)
    for gap in gaps:
        before = clock.seconds
        clock.tick(now := now + gap)
        assert 0.0 <= clock.seconds - before <= min(most, gap) + 1e-6


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(0, 3)), max_size=60))
def test_whoever_pulses_and_steps_in_time_never_hangs(steps: list[tuple[float, int]]) -> None:
    vitals, now, calls = Vitals(0.0, HANG_S), 0.0, 0
    for gap, requests in steps:
        now, calls = now + gap, calls + 1
        vitals.pulsed(Pulse(calls, requests), now)
        assert vitals.hang(now) == ""
