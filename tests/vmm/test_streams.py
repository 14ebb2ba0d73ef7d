"""Streams made of threads: the moment at which events are reached, and where errors are raised.

The streams work on a gate instead of memory, so that the test can stop them at every moment.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import vmm.host
from vmm import HostDriver, NotMapped, VmmError, host_buffer
from vmm.threads import ThreadEvent, ThreadStream

pytestmark = pytest.mark.vmm
PAGE = 65536


class Gate:
    """Stand-in for memory: a copy to address n passes when gate n is open."""

    def __init__(self) -> None:
        self.open = {n: threading.Event() for n in range(4)}
        self.done: list[int] = []

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        self.open[dst].wait()
        self.done.append(dst)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        raise NotMapped(f"{address:#x} is not mapped")

    def stream(self) -> ThreadStream:
        return ThreadStream(self.copy, self.fill, lambda _: None)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    for event in gate.open.values():
        event.set()


def test_an_event_is_unreached_until_the_stream_passes_it(gate: Gate) -> None:
    stream, event = gate.stream(), ThreadEvent()
    stream.copy(0, 0, 1)
    stream.record(event)
    assert not event.reached()
    gate.open[0].set()
    event.wait()
    assert event.reached() and gate.done == [0]


def test_an_event_is_recorded_again(gate: Gate) -> None:
    stream, event = gate.stream(), ThreadEvent()
    gate.open[0].set()
    stream.copy(0, 0, 1)
    stream.record(event)
    event.wait()
    stream.copy(1, 0, 1)
    stream.record(event)
    assert not event.reached()
    gate.open[1].set()
    event.wait()
    assert gate.done == [0, 1]


def test_a_stream_waits_for_the_recording_it_was_told_of(gate: Gate) -> None:
    """A stream waits for an event, which is then recorded again. As on a GPU, the wait ends with
    the first recording.
    """
    first, second, event = gate.stream(), gate.stream(), ThreadEvent()
    first.copy(0, 0, 1)
    first.record(event)
    second.wait_for(event)
    second.copy(2, 0, 1)
    first.copy(1, 0, 1)
    first.record(event)
    for open_now in (0, 2):
        gate.open[open_now].set()
    second.synchronize()
    assert gate.done == [0, 2]
    assert not event.reached()


def test_waiting_holds_the_stream_and_not_the_caller(gate: Gate) -> None:
    first, second, event, passed = gate.stream(), gate.stream(), ThreadEvent(), ThreadEvent()
    gate.open[1].set()
    first.copy(0, 0, 1)
    first.record(event)
    second.wait_for(event)
    second.copy(1, 0, 1)
    second.record(passed)
    assert not passed.reached() and gate.done == []
    gate.open[0].set()
    passed.wait()
    assert gate.done == [0, 1]


def test_an_error_comes_out_wherever_the_work_is_awaited(gate: Gate) -> None:
    first, second, event, later = gate.stream(), gate.stream(), ThreadEvent(), ThreadEvent()
    first.fill(0xABC, 0, 1)
    first.copy(0, 0, 1)
    first.record(event)
    second.wait_for(event)
    second.record(later)
    for surfaces in (event.wait, event.reached, first.synchronize, later.wait, second.synchronize):
        with pytest.raises(NotMapped, match="0xabc"):
            surfaces()
    assert gate.done == []  # what follows a failure is skipped
    first.close()


def test_events_before_a_failure_are_sound(gate: Gate) -> None:
    stream, before = gate.stream(), ThreadEvent()
    gate.open[0].set()
    stream.copy(0, 0, 1)
    stream.record(before)
    stream.fill(0xABC, 0, 1)
    with pytest.raises(NotMapped):
        stream.synchronize()
    before.wait()
    assert before.reached()


def test_an_event_of_another_kind_is_refused(gate: Gate) -> None:
    stream = gate.stream()
    for use in (stream.record, stream.wait_for):
        with pytest.raises(VmmError, match="object"):
            use(object())


def test_memory_unmapped_before_its_copy_is_an_error_not_a_crash() -> None:
    with HostDriver(PAGE) as host:
        address, stream = host.reserve(PAGE), host.stream()
        stream.copy(address, address, PAGE)
        with pytest.raises(NotMapped, match=f"{address:#x}"):
            stream.synchronize()


class FakeTime:
    """Clock that only sleeping advances; the second sleep ends the test's stream."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps = 0
        self.reached, self.go_on = threading.Event(), threading.Event()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        if self.sleeps == 2:
            self.reached.set()
            self.go_on.wait()
        self.now += seconds


def test_a_throttled_copy_arrives_in_the_pace_of_the_link(monkeypatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr(vmm.host, "time", clock)
    with HostDriver(PAGE, copy_bytes_per_s=PAGE) as host:
        source, address = host_buffer(PAGE), host.reserve(PAGE)
        source.tensor().fill_(1)
        host.map(address, host.create(1))
        stream, event = host.stream(), host.event()
        stream.copy(address, source.address, PAGE)
        stream.record(event)
        clock.reached.wait()
        arrived = int(host.tensor(address, PAGE).sum())
        assert arrived == int(PAGE * vmm.host.SLICE_S)
        assert not event.reached()
        clock.go_on.set()
        event.wait()
        assert host.tensor(address, PAGE).eq(1).all()
        assert clock.now == pytest.approx(1.0)
        source.close()
