"""A worker carries out orders on real pages: in any order, sensible or not, on a short device."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirage.control.engine.orders import (
    Action,
    MapExtents,
    MemoryAnswer,
    MemoryOrders,
    NotTheNext,
    SetParameters,
    UnmapExtents,
)
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.memory_worker import MemoryWorker
from mirage.streaming.transfer import LayerFrame, LayerStreamer, TransferError
from tests.examples import examples
from tests.settings import engine_settings
from vmm import libc
from vmm.driver import DeviceError, GrantExceeded, VmmError
from vmm.host import HostBuffer, HostDriver
from vmm.space import ExtentMap, Range

pytestmark = pytest.mark.vmm

PAGE, LAYERS, LAYER_PAGES = 4096, 5, 2
LAYER_BYTES = LAYER_PAGES * PAGE
EXTENTS, START = 10, 4


class Engine:
    """Layers each of whose bytes is the layer's number plus one, and KV extents of one page."""

    def __init__(self) -> None:
        self.memory = DeviceMemory(engine_settings(base_blocks=START, page=PAGE))
        memory, driver = self.memory, self.memory.driver
        memory.masters = [HostBuffer(LAYER_BYTES) for _ in range(LAYERS)]
        layers = [self._layer(index) for index in range(LAYERS)]
        memory.streamer = LayerStreamer(driver, memory.pool, layers, memory.compute)
        self.extents = ExtentMap(Range(driver, EXTENTS * PAGE), memory.pool, [0], PAGE, EXTENTS)
        self.extents.map(range(START))
        memory.kv = SimpleNamespace(extents=self.extents)  # type: ignore[assignment]
        self.regrant(grant_of(0, START))
        self.worker = MemoryWorker(memory)
        self.uncached = 0

    def regrant(self, nbytes: int) -> None:
        self.memory.regrant(nbytes)

    def _layer(self, index: int) -> LayerFrame:
        memory = self.memory
        master, home = memory.masters[index], Range(memory.driver, LAYER_BYTES)
        master.tensor().fill_(index + 1)
        home.back(0, memory.pool.take(LAYER_PAGES, "layer"))
        memory.driver.copy(home.address, master.address, LAYER_BYTES)
        return LayerFrame(index, home, master.address, LAYER_BYTES, memory.driver.event())

    @property
    def device(self) -> HostDriver:
        assert isinstance(self.memory.driver, HostDriver)
        return self.memory.driver

    def holds(self) -> tuple[int, int, set[int], int]:
        memory = self.memory
        return (
            memory.layers_remapped,
            memory.stream_slots,
            set(self.extents.mapped),
            memory.pool.held_bytes,
        )

    def step(self) -> None:
        """Read each layer as a step does, and check that it has its own bytes."""
        streamer = self.memory.streamer
        assert streamer is not None
        for layer in streamer.layers:
            streamer.before(layer.index)
            values = layer.range.tensor(0, LAYER_BYTES)
            assert int(values.min()) == int(values.max()) == layer.index + 1
            streamer.after(layer.index)

    def close(self) -> None:
        assert self.memory.streamer is not None
        self.memory.streamer.close()
        self.memory.driver.close()
        for master in self.memory.masters:
            master.close()


def grant_of(remapped: int, extents: int) -> int:
    return (LAYERS - remapped) * LAYER_BYTES + extents * PAGE


extents = st.lists(st.integers(0, EXTENTS), max_size=4).map(tuple)
"""Numbers of extents, also with the same one twice, or with one that does not exist."""
actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(MapExtents, extents, st.booleans()),
    st.builds(UnmapExtents, extents),
    st.builds(
        SetParameters,
        st.integers(0, LAYERS),
        st.integers(0, 2),
        st.just(0),
        st.booleans(),
        st.booleans(),
    ),
)


class Orders(RuleBasedStateMachine):
    """Any sequence of orders to the worker. Each is answered, and the answer equals the memory
    held.
    """

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine()
        self.answer = self.engine.worker.obey(MemoryOrders(0))
        self.epoch = 0

    def obey(self, orders: MemoryOrders) -> MemoryAnswer:
        self.answer = self.engine.worker.obey(orders)
        assert self.answer.epoch == orders.epoch
        return self.answer

    @rule(
        ordered=st.lists(actions, max_size=4).map(tuple),
        grant=st.none() | st.integers(0, grant_of(0, EXTENTS)),
        emptied=extents,
    )
    def order(
        self, ordered: tuple[Action, ...], grant: int | None, emptied: tuple[int, ...]
    ) -> None:
        before, failed = self.engine.holds(), self.answer.error
        self.epoch += 1
        answer = self.obey(MemoryOrders(self.epoch, grant, emptied, ordered))
        if failed is not None:
            assert answer.error is failed and not answer.done
            assert self.engine.holds() == before, "after an error nothing moves"
        elif answer.error is None:
            self.carried_out(ordered, answer)
        else:
            assert len(answer.done) <= len(ordered)
            assert isinstance(answer.error, (VmmError, TransferError)), answer.error

    def carried_out(self, ordered: tuple[Action, ...], answer: MemoryAnswer) -> None:
        assert len(answer.done) == len(ordered)
        mapped = self.engine.extents.mapped
        for action, done in zip(ordered, answer.done, strict=True):
            assert done.seconds >= 0
            if isinstance(action, SetParameters):
                assert done.number == 1 or (action.takes and done.number == 0)
            else:
                assert 0 <= done.number <= len(action.extents)
        if ordered and isinstance(action, MapExtents):
            assert set(action.extents[: done.number]) <= mapped
            assert not set(action.extents[done.number :]) & mapped
        if ordered and isinstance(action, UnmapExtents):
            assert not set(action.extents) & mapped

    @rule(by=st.integers(-2, 3).filter(lambda by: by != 1))
    def out_of_turn(self, by: int) -> None:
        """Send an order again or too early. It is refused, and no memory moves."""
        if self.epoch + by < 1:
            return
        before, failed = self.engine.holds(), self.answer.error
        answer = self.obey(MemoryOrders(self.epoch + by, 0, (), (UnmapExtents((0,)),)))
        assert answer.error is failed if failed else isinstance(answer.error, NotTheNext)
        assert self.engine.holds() == before
        self.answer = self.answer._replace(error=failed)

    @rule(pages=st.integers(0, 4))
    def device_is_short(self, pages: int) -> None:
        self.engine.device.capacity_bytes = self.engine.device.used_bytes() + pages * PAGE

    @rule()
    def device_has_enough(self) -> None:
        self.engine.device.capacity_bytes = 1 << 30

    @precondition(lambda self: self.answer.error is None)
    @rule()
    def step(self) -> None:
        if self.engine.memory.layers_remapped == LAYERS:
            with pytest.raises(TransferError, match="no layer of the model has memory"):
                self.engine.memory.begin_step()
            return
        self.engine.memory.begin_step()
        self.engine.step()

    @invariant()
    def the_answer_is_what_is_held(self) -> None:
        remapped, slots, mapped, held = self.engine.holds()
        answer = self.answer
        assert (answer.layers_remapped, answer.stream_slots, answer.experts) == (remapped, slots, 0)
        assert (answer.extents, answer.held_bytes) == (len(mapped), held)

    @invariant()
    def pages_add_up_unless_it_failed(self) -> None:
        if self.answer.error is None:
            self.engine.memory.check_integrity()
            self.engine.memory.self_check()

    def teardown(self) -> None:
        self.engine.close()


TestOrders = Orders.TestCase
TestOrders.settings = examples(100, stateful_step_count=30)


@pytest.fixture
def engine() -> Any:
    made = Engine()
    yield made
    made.close()


def test_emptied_extents_are_told_to_rows_once_and_before_the_next_step(engine: Engine) -> None:
    engine.worker.obey(MemoryOrders(1, emptied=(2,)))
    engine.worker.obey(MemoryOrders(2, actions=(UnmapExtents((2,)),), emptied=(3,)))
    assert set(engine.memory.left_blocks()) == {2, 3} and not engine.memory.left_blocks()


def test_more_than_was_granted_is_an_error_that_is_answered(engine: Engine) -> None:
    answer = engine.worker.obey(MemoryOrders(1, actions=(MapExtents((7, 8)),)))
    assert isinstance(answer.error, GrantExceeded) and not answer.done
    again = engine.worker.obey(MemoryOrders(2, grant_of(0, EXTENTS)))
    assert again.error is answer.error


def test_memory_that_cannot_be_freed_is_the_devices_error(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(libc, "punch", refused)
    orders = MemoryOrders(1, grant_of(0, START), actions=(UnmapExtents((1, 2)),))
    answer = engine.worker.obey(orders)
    assert isinstance(answer.error, DeviceError) and "Input/output error" in str(answer.error)


@pytest.mark.parametrize(("insists", "uncached"), [(True, 1), (False, 0)])
def test_a_device_that_is_short_says_what_it_had_memory_for(
    engine: Engine, insists: bool, uncached: int
) -> None:
    engine.memory.uncache = lambda: setattr(engine, "uncached", engine.uncached + 1)  # type: ignore[method-assign]
    engine.device.capacity_bytes = engine.device.used_bytes() + 2 * PAGE
    wanted = MapExtents((4, 5, 6, 7), insists)
    answer = engine.worker.obey(MemoryOrders(1, grant_of(0, EXTENTS), actions=(wanted,)))
    assert answer.error is None and answer.done[0].number == 2
    assert set(engine.extents.mapped) == {0, 1, 2, 3, 4, 5} and engine.uncached == uncached
    assert answer.held_bytes == grant_of(0, START + 2), "no page is kept that nobody uses"


def test_all_layers_may_go_and_come_back_between_two_steps(engine: Engine) -> None:
    away = SetParameters(LAYERS, 0, 0, takes=False)
    gone = engine.worker.obey(MemoryOrders(1, actions=(away, UnmapExtents((1, 2, 3)))))
    assert (gone.error, gone.held_bytes) == (None, PAGE)
    back = SetParameters(2, 1, 0, takes=True)
    there = engine.worker.obey(MemoryOrders(2, actions=(back, MapExtents((1,)))))
    assert (there.error, there.held_bytes) == (None, grant_of(2, 2))
    engine.memory.begin_step()
    engine.step()


def test_layers_come_back_whole_or_not_at_all(engine: Engine) -> None:
    away = engine.worker.obey(MemoryOrders(1, actions=(SetParameters(2, 1, 0, takes=False),)))
    assert (away.layers_remapped, away.stream_slots) == (2, 1) and away.held_bytes == grant_of(
        2, START
    )
    engine.device.capacity_bytes = engine.device.used_bytes() + PAGE
    back = MemoryOrders(2, actions=(SetParameters(0, 0, 0, takes=True, insists=True),))
    answer = engine.worker.obey(back)
    assert answer.error is None and answer.done[0].number == 0
    assert (answer.layers_remapped, answer.stream_slots) == (2, 1)
