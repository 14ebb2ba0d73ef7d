"""The step clock: compute time of a device that runs behind its host, known afterwards."""

from __future__ import annotations

import pytest

from mirage.control.compute_time import MOST_PENDING
from mirage.engine.stepclock import EventClock

pytestmark = pytest.mark.pure


class Device:
    """Stand-in for a device that computes behind its host: enqueued work raises `enqueued`, and a
    mark has passed when `now` has come to it.
    """

    def __init__(self) -> None:
        self.enqueued = self.now = 0.0

    def mark(self) -> Mark:
        return Mark(self)

    def work(self, ms: float) -> None:
        self.enqueued += ms


class Mark:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, -1.0

    def record(self) -> None:
        self.at = self.device.enqueued

    def query(self) -> bool:
        return self.at <= self.device.now

    def elapsed_time(self, end: Mark) -> float:
        assert self.query() and end.query(), "asked before it was reached"
        return end.at - self.at


def step(clock: EventClock, device: Device, told: list[float], ms: float, stall: float = 0) -> None:
    with clock.timed(told.append):
        device.work(ms / 2)
        with clock.stall():
            device.work(stall)
        device.work(ms / 2)


def test_a_step_is_told_without_its_stalls_once_the_device_has_passed_it() -> None:
    device, told = Device(), []
    clock = EventClock(device.mark)
    step(clock, device, told, ms=20, stall=5)
    step(clock, device, told, ms=30)
    assert told == [], "the device has not even begun"
    device.now = 25
    step(clock, device, told, ms=40)
    assert told == pytest.approx([0.020])
    assert clock.stall_s == pytest.approx(0.005)
    device.now = 1000
    step(clock, device, told, ms=1)
    assert told == pytest.approx([0.020, 0.030, 0.040, 0.001])


def test_a_wait_outside_of_a_step_is_not_timed() -> None:
    device, told = Device(), []
    clock = EventClock(device.mark)
    with clock.stall():
        device.work(7)
    device.now = 1000
    step(clock, device, told, ms=2)
    assert told == pytest.approx([0.002]) and clock.stall_s == 0


def test_a_device_that_hangs_does_not_pile_up_marks() -> None:
    device, told = Device(), []
    clock = EventClock(device.mark)
    for _ in range(3 * MOST_PENDING):
        step(clock, device, told, ms=1)
    device.now = 1e9
    step(clock, device, told, ms=1)
    assert len(told) == MOST_PENDING


def test_a_step_that_fails_leaves_the_next_one_whole() -> None:
    device, told = Device(), []
    clock = EventClock(device.mark)
    with pytest.raises(RuntimeError), clock.timed(told.append):
        raise RuntimeError
    with clock.stall():
        device.work(9)
    device.now = 1000
    step(clock, device, told, ms=3)
    assert told == pytest.approx([0.003])
