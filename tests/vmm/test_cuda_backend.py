"""An engine's backend on a GPU, over the driver's stand-in, with a stand-in for torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from threading import Thread, get_ident
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda.bindings import driver as cu

from mirage.control.compute_time import RECENT
from mirage.engine.backend import Backend, make_backend
from mirage.engine.params import _lock
from tests.settings import engine_settings
from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda import StandIn
from vmm import Event, Stream, host_buffer
from vmm.cuda_calls import call
from vmm.driver import DeviceError

pytestmark = pytest.mark.vmm
PAGE = 65536
LINK = 2e6
LINK_S = PAGE / LINK
"""Seconds in which a link of `LINK` bytes a second carries a page: 33 ms."""
MS = 1e-3


@pytest.fixture
def standin() -> Iterator[StandIn]:
    made = loaded()
    made.reset(memory_bytes=16 * PAGE, granularity=PAGE)
    yield made
    made.reset()


class Torch:
    """Stand-in for torch: the compute stream, and events that are a millisecond apart in the order
    of their recording.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = engine_settings(device="cuda", page=PAGE)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "Event", self._mark)
        self.backend: Backend = make_backend(settings)
        self.stream: Stream = self.backend.driver.stream()
        self.elsewhere: Stream = self.backend.driver.stream()
        """Current stream of all threads but the engine's."""
        engine = get_ident()

        def current_stream() -> SimpleNamespace:
            stream: Any = self.stream if get_ident() == engine else self.elsewhere
            return SimpleNamespace(cuda_stream=int(stream.handle))

        monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
        self._times = count()

    def _mark(self, *, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        mark = SimpleNamespace(reached=self.backend.driver.event())

        def record() -> None:
            mark.ms = next(self._times)
            self.stream.record(mark.reached)

        mark.record, mark.query = record, lambda: mark.reached.reached()
        mark.elapsed_time = lambda other: other.ms - mark.ms
        return mark


@pytest.fixture
def their(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Torch]:
    made = Torch(monkeypatch)
    yield made
    made.stream.close()
    made.elsewhere.close()
    made.backend.driver.close()
    assert not any(standin.leaks().values()), standin.leaks()


def test_steps_wait_for_copies_on_torchs_stream_and_nobody_waits_for_steps(
    their: Torch, standin: StandIn
) -> None:
    backend, driver = their.backend, their.backend.driver
    address = driver.reserve(PAGE)
    driver.map(address, driver.create(1))
    source, out = host_buffer(PAGE), host_buffer(PAGE)
    for buffer in (source, out):
        driver.pin(buffer.address, PAGE)
    source.tensor().fill_(7)
    copies = driver.stream()
    ready, told = driver.event(), list[float]()

    standin.pace(LINK)
    with backend.timed(told.append):
        copies.copy(address, source.address, PAGE)
        copies.record(ready)
        backend.compute.wait(ready)
        their.stream.copy(out.address, address + PAGE - 64, 64)
    assert told == [] and not ready.reached(), "enqueued, and nobody waited"
    time.sleep(LINK_S / 2)  # in which compute would have run, did it not wait
    standin.pace(0)

    backend.compute.synchronize()
    assert out.tensor()[:64].eq(7).all(), "computed with what was loaded"
    with backend.timed(told.append):
        pass
    assert told[:1] == pytest.approx([2 * MS]), "a stall of one is left out of three"
    assert backend.compute.stall_s == pytest.approx(MS)
    copies.close()
    for buffer in (source, out):
        driver.unpin(buffer.address)
        buffer.close()


def test_who_asks_beside_the_engine_means_the_stream_of_its_steps(
    their: Torch, standin: StandIn
) -> None:
    """Another thread, which reads messages, records an event while a step runs. The event is on the
    step's stream, so it has not passed before the step's work.
    """
    backend, driver = their.backend, their.backend.driver
    address, source = driver.reserve(PAGE), host_buffer(PAGE)
    driver.map(address, driver.create(1))
    driver.pin(source.address, PAGE)
    computed = driver.event()

    def demote() -> None:
        backend.compute.record(computed)

    standin.pace(LINK)
    with backend.compute.step():
        their.stream.copy(address, source.address, PAGE)
    agent = Thread(target=demote)
    agent.start()
    agent.join()
    assert not computed.reached(), "the step still writes what would be copied"
    standin.pace(0)
    backend.compute.synchronize()
    assert computed.reached()
    driver.unpin(source.address)
    source.close()


def test_torchs_stream_is_adopted_once_and_stays_theirs(their: Torch, standin: StandIn) -> None:
    events: list[Event] = [their.backend.driver.event() for _ in range(3)]
    before = standin.leaks()["streams"]
    for event in events:
        their.backend.compute.record(event)
    their.backend.compute.synchronize()
    assert all(event.reached() for event in events)
    assert standin.leaks()["streams"] == before


def test_a_master_that_cannot_be_locked_says_what_serves_without(
    their: Torch, standin: StandIn
) -> None:
    standin.fail(1, "cuMemHostRegister", 801)
    master = host_buffer(PAGE)
    with pytest.raises(DeviceError, match=r"cannot be locked.* max_percent: 0"):
        _lock(their.backend.driver, master.address, PAGE)
    master.close()


def test_memory_that_nobody_granted_is_what_the_device_says_of_it(their: Torch) -> None:
    driver: Any = their.backend.driver
    free, total = their.backend.memory_info()
    with driver.entered():
        workspace = call(cu.cuMemAlloc, 3 * PAGE)
    pages = driver.create(2)
    assert their.backend.memory_info() == (free - 5 * PAGE, total)
    assert total - their.backend.memory_info()[0] - driver.used_bytes() == 3 * PAGE
    driver.release(pages)
    with driver.entered():
        call(cu.cuMemFree, workspace)


def test_what_left_torchs_allocator_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        emptied = []
        patch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
        loaded().reset(memory_bytes=16 * PAGE, granularity=PAGE)
        backend = Torch(patch).backend
        backend.uncache()
        backend.driver.close()
        assert emptied == [True]
    loaded().reset()


def test_waits_of_streamed_layers_leave_gaps_that_no_layer_hides_behind(their: Torch) -> None:
    """The host needs a millisecond for each wait for a streamed layer. The learned step time leaves
    these gaps out, so it does not grow with the number of streamed layers.
    """
    backend, learned = their.backend, their.backend.compute_time
    ready, told = backend.driver.event(), dict[int, float]()
    for streamed in (0, 2, 5, 9):
        for _ in range(3 * RECENT):
            learned.begin(streamed)
            with backend.timed(learned.end):
                for _ in range(streamed):
                    backend.compute.wait(ready)
            backend.compute.synchronize()
        told[streamed] = learned.step_s
    assert told == pytest.approx(dict.fromkeys((0, 2, 5, 9), MS))
