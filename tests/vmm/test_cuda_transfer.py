"""Streamed layers on a device that runs behind its caller, in the stand-in's real time.

The compute stream copies out the last bytes of each layer, as what the layer computes with. Loading
a layer takes much longer than that, so a missing wait shows another layer's bytes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage.streaming.compute import StreamCompute
from mirage.streaming.transfer import LayerFrame, LayerStreamer, TransferError
from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda import StandIn
from vmm import Event, PagePool, Range, host_buffer
from vmm.cuda import CudaDriver

pytestmark = pytest.mark.vmm
ROOT = Path(__file__).parents[2]
PAGE = 65536
LAYERS = 8
STEPS = 4
READ = 64
"""Bytes of a layer that are copied out."""
LINK = 20e6
"""Bytes a second: a layer takes 3 ms."""
BLOCKING = ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuEventQuery")
SETS = [(1, 1), (2, 2), (5, 2), (7, 1), (6, 2), (1, 2), (0, 1)]


class Hasty(StreamCompute):
    """Compute that leaves out the waits for copies, as a control of the tests."""

    def wait(self, event: Event) -> None:
        pass


class Careless(StreamCompute):
    """Compute that leaves out the waits for steps, as a control of the tests."""

    def wait_for_steps(self) -> None:
        pass


class Model:
    """A model in which each byte of layer i is i + 1. Each step copies a part of every layer into a
    row of `out`.
    """

    def __init__(
        self, compute: type[StreamCompute] = StreamCompute, chunk_bytes: int | None = None
    ) -> None:
        self.driver = driver = CudaDriver(tensors_on="cpu")
        self.stream = driver.stream()
        self.masters = [host_buffer(PAGE) for _ in range(LAYERS)]
        pool = PagePool(driver, (LAYERS + 1) * PAGE)
        layers = []
        for index, master in enumerate(self.masters):
            driver.pin(master.address, PAGE)
            master.tensor().fill_(index + 1)
            home = Range(driver, PAGE)
            home.back(0, pool.take(1, "layer"))
            driver.copy(home.address, master.address, PAGE)
            layers.append(LayerFrame(index, home, master.address, PAGE, driver.event()))
        self.out = Range(driver, PAGE)
        self.out.back(0, pool.take(1, "out"))
        computed = compute(lambda: self.stream, driver.synchronize, driver.event)
        self.streamer = LayerStreamer(driver, pool, layers, computed, chunk_bytes=chunk_bytes)

    def step(self, number: int, until: int = LAYERS) -> None:
        with self.streamer.compute.step():
            for index in range(until):
                self.streamer.before(index)
                self._compute(number, index)
                self.streamer.after(index)

    def step_in_pieces(self, number: int, until: int = LAYERS) -> None:
        """Run a step in pieces, the last of which reaches into the next step."""
        last = LAYERS - 1
        self.streamer.before(last)
        self._compute(number, last)
        for index in range(until):
            self.streamer.after((index - 1) % LAYERS)
            self.streamer.before(index)
            self._compute(number, index)

    def _compute(self, number: int, index: int) -> None:
        to = self.out.address + (number * LAYERS + index) * READ
        end = self.streamer.layers[index].range.address + PAGE
        self.stream.copy(to, end - READ, READ)

    def seen(self, number: int, until: int = LAYERS) -> list[int]:
        """Byte that each layer of a step had; 0 if bytes of two layers were mixed."""
        self.stream.synchronize()
        read = []
        for index in range(until):
            part = self.out.tensor((number * LAYERS + index) * READ, READ)
            low, high = int(part.min()), int(part.max())
            read.append(low if low == high else 0)
        return read

    def close(self) -> None:
        self.driver.close()
        for master in self.masters:
            master.close()


@pytest.fixture
def standin() -> Iterator[StandIn]:
    made = loaded()
    made.reset(memory_bytes=(LAYERS + 1) * PAGE, granularity=PAGE)
    yield made
    assert not any(made.leaks().values()), made.leaks()
    made.reset()


RIGHT = list(range(1, LAYERS + 1))


@pytest.mark.parametrize("chunk", [None, PAGE // 16])
def test_a_streamed_layer_costs_few_changes_of_the_context(
    standin: StandIn, chunk: int | None
) -> None:
    """A streamed layer needs at most four changes of the CUDA context, which are slow calls,
    however many pieces it is copied in.
    """
    model = Model(chunk_bytes=chunk)
    remapped, slots = 4, 2
    model.streamer.set(remapped, slots)
    _enqueue(model)
    before = standin.calls()
    _enqueue(model)
    after = standin.calls()
    streamed = remapped + slots
    assert after["cuCtxPushCurrent"] - before["cuCtxPushCurrent"] <= 4 * streamed
    copies = after["cuMemcpyAsync"] - before["cuMemcpyAsync"]
    pieces = PAGE // chunk if chunk else 1
    assert copies == pieces * streamed, "one call of the driver for each piece"
    model.driver.synchronize()
    model.close()


def _enqueue(model: Model) -> None:
    for index in range(LAYERS):
        model.streamer.before(index)
        model.streamer.after(index)


def test_every_layer_finds_its_own_bytes_however_many_are_remapped(standin: StandIn) -> None:
    model = Model()
    standin.pace(LINK)
    for remapped, slots in SETS:
        model.streamer.set(remapped, slots)
        for number in range(STEPS):
            model.step(number)
        assert [model.seen(number) for number in range(STEPS)] == [RIGHT] * STEPS, (remapped, slots)
        model.streamer.check_integrity()
    model.close()


def test_every_piece_finds_its_own_bytes_however_many_are_remapped(standin: StandIn) -> None:
    """Each piece of a step computes with its own layer's bytes, also in a step after one that ended
    early.
    """
    model = Model()
    standin.pace(LINK)
    for remapped, slots in SETS:
        model.streamer.set(remapped, slots)
        for number, until in enumerate((LAYERS, 3, LAYERS, LAYERS)):
            model.step_in_pieces(number, until)
            assert model.seen(number, until) == RIGHT[:until], (remapped, slots)
            assert model.seen(number)[-1] == LAYERS, "before the first attention"
        model.streamer.check_integrity()
    model.close()


def test_a_step_that_was_aborted_leaves_the_next_one_right(standin: StandIn) -> None:
    model = Model()
    standin.pace(LINK)
    model.streamer.set(5, 2)
    for until in (3, LAYERS, 1, LAYERS):
        model.step(0, until)
        assert model.seen(0, until) == RIGHT[:until]
    model.close()


def test_nobody_waits_in_the_steady_state(standin: StandIn) -> None:
    model = Model()
    model.streamer.set(5, 2)
    model.step(0)
    standin.pace(LINK)
    before = standin.calls()
    for number in range(STEPS):
        model.step(number)
    after = standin.calls()
    ends = STEPS  # each step's is recorded
    assert {name: after.get(name, 0) - before.get(name, 0) for name in BLOCKING} == dict.fromkeys(
        BLOCKING, 0
    )
    streamed = 7 * STEPS
    assert after["cuEventRecord"] - before["cuEventRecord"] == 2 * streamed + ends
    assert after["cuStreamWaitEvent"] - before["cuStreamWaitEvent"] == 2 * streamed
    assert [model.seen(number) for number in range(STEPS)] == [RIGHT] * STEPS
    model.close()


def test_the_set_changes_when_the_device_has_run_the_steps_before(standin: StandIn) -> None:
    model = Model()
    standin.delay(0.005)
    model.step(0)
    model.streamer.set(3, 2)  # unmaps what that step reads
    model.step(1)
    standin.delay(0)
    assert model.seen(0) == model.seen(1) == RIGHT
    model.close()


def test_a_set_that_does_not_wait_for_the_steps_before_is_refused(standin: StandIn) -> None:
    model = Model(Careless)
    standin.delay(0.05)
    model.step(0)
    with pytest.raises(TransferError, match="cuMemUnmap"):
        model.streamer.set(3, 2)
    standin.delay(0)
    model.close()


def test_a_set_waits_for_steps_and_for_nothing_else(standin: StandIn) -> None:
    model = Model()
    standin.pace(LINK)
    model.step(0)
    blocking = standin.calls()
    model.streamer.set(3, 2)
    called = {name: standin.calls().get(name, 0) - blocking.get(name, 0) for name in BLOCKING}
    assert called["cuCtxSynchronize"] == called["cuStreamSynchronize"] == 0
    model.step(1)
    assert model.seen(0) == model.seen(1) == RIGHT
    model.close()


def test_layers_that_come_back_one_by_one_do_not_wait_for_each_other(standin: StandIn) -> None:
    model = Model()
    model.streamer.set(4, 1)
    model.step(0)
    model.driver.synchronize()
    standin.pace(PAGE / 0.2)
    model.streamer.set(3, 1)
    first = next(iter(model.streamer.arriving))
    model.streamer.set(2, 1)
    assert not first.ready.reached(), "the second was mapped while the first was loaded"
    assert len(model.streamer.arriving) == 2
    standin.pace(0)
    model.step(1)
    assert model.seen(1) == RIGHT
    model.streamer.check_integrity()
    model.close()


@pytest.mark.parametrize("after", [(5, 2), (6, 1), (1, 2), (0, 1)])
def test_a_slot_that_is_taken_apart_while_it_is_loaded_waits_for_that(
    standin: StandIn, after: tuple[int, int]
) -> None:
    model = Model()
    model.streamer.set(4, 2)
    standin.pace(LINK)
    for number in range(STEPS):
        model.step(number)  # which ends with slots that load the first layers of their rings
        model.streamer.set(*(after if number % 2 else (4, 2)))
    assert [model.seen(number) for number in range(STEPS)] == [RIGHT] * STEPS
    model.streamer.check_integrity()
    model.close()


def test_after_a_step_that_failed_the_device_is_waited_for(standin: StandIn) -> None:
    model = Model()
    model.step(0)
    standin.delay(0.05)
    with pytest.raises(RuntimeError), model.streamer.compute.step():
        for index in range(LAYERS):
            model._compute(1, index)
        raise RuntimeError("a kernel was refused")
    model.streamer.set(3, 2)
    standin.delay(0)
    assert model.seen(1) == RIGHT
    model.close()


def test_without_the_waits_for_copies_layers_read_other_bytes(standin: StandIn) -> None:
    model = Model(Hasty)
    model.streamer.set(5, 2)
    standin.pace(LINK)
    for number in range(STEPS):
        model.step(number)
    read = [model.seen(number) for number in range(STEPS)]
    standin.pace(0)
    model.driver.synchronize()
    assert read != [RIGHT] * STEPS
    model.close()


def test_layers_go_behind_the_steps_before_and_come_back_from_their_masters(
    standin: StandIn,
) -> None:
    """All layers are given away right after a step was enqueued, then some come back and the others
    are streamed. The steps before and after see the right bytes. In the next round the layers go
    while they are still being loaded.
    """
    model = Model()
    standin.pace(LINK)
    for remapped, slots in [*SETS, (0, 1)]:
        model.step(0)
        model.streamer.set(LAYERS, 0)
        assert not any(home.range.backed_in(0, PAGE) for home in model.streamer.layers)
        model.streamer.check_integrity()
        with pytest.raises(TransferError, match="no layer of the model has memory"):
            model.streamer.begin()
        before = model.streamer.bytes_streamed
        model.streamer.set(remapped, slots)
        assert model.streamer.bytes_streamed - before == (LAYERS - remapped) * PAGE
        model.step(1)
        assert model.seen(0) == model.seen(1) == RIGHT, (remapped, slots)
        model.streamer.check_integrity()
        model.streamer.set(LAYERS, 0)
        model.streamer.set(remapped, slots)
    model.driver.synchronize()
    model.close()


def test_layers_that_go_under_a_step_are_refused(standin: StandIn) -> None:
    model = Model(Careless)
    standin.delay(0.05)
    model.step(0)
    with pytest.raises(TransferError, match="cuMemUnmap"):
        model.streamer.set(LAYERS, 0)
    standin.delay(0)
    model.close()


def test_who_reads_an_absent_layer_faults(standin: StandIn) -> None:
    script = (
        "from tests.vmm.conftest import standin; from tests.vmm import test_cuda_transfer as t\n"
        "standin().reset(memory_bytes=9 * t.PAGE, granularity=t.PAGE)\n"
        "model = t.Model(); model.streamer.set({}, {}); model.streamer.before(3)\n"
        "int(model.streamer.layers[3].range.tensor(0, t.PAGE).max())"
    )
    there, absent = (
        subprocess.run([sys.executable, "-c", script.format(*away)], cwd=ROOT, check=False)
        for away in ((7, 1), (LAYERS, 0))
    )
    assert (there.returncode, absent.returncode) == (0, -signal.SIGSEGV)


def test_a_set_that_is_left_half_changed_says_so(standin: StandIn) -> None:
    """A change of streamed layers fails in the middle, so some layers have no memory. The error
    says so, and no step may run.
    """
    model = Model()
    standin.fail(3, "cuMemSetAccess")
    with pytest.raises(TransferError, match=r"half changed.*cuMemSetAccess"):
        model.streamer.set(3, 2)
    model.close()
