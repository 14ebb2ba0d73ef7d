"""Streamed layers: whatever layers are given away, one that runs finds its own parameters."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mirage.streaming.compute import HostCompute
from mirage.streaming.transfer import LayerFrame, LayerStreamer, TransferError
from tests.examples import examples
from tests.tampered.pool import PoisoningPool
from vmm.driver import GrantExceeded, OutOfMemory
from vmm.host import HostBuffer, HostDriver
from vmm.pages import PagePool
from vmm.space import Range

pytestmark = pytest.mark.vmm

ROOT = Path(__file__).parents[2]
PAGE = 4096
LAYER_PAGES = 3
NBYTES = LAYER_PAGES * PAGE - 100


class Model:
    """A model of `count` layers, each of whose bytes is the layer's number plus one."""

    def __init__(
        self,
        count: int,
        *,
        link: float | None = None,
        spare_layers: int = 0,
        poison: bool = True,
        chunk_bytes: int | None = None,
    ) -> None:
        self.driver = HostDriver(PAGE, copy_bytes_per_s=link)
        frame = LAYER_PAGES * PAGE
        pool = PoisoningPool if poison else PagePool
        self.pool = pool(self.driver, (count + spare_layers) * frame)
        self.masters, layers = [], []
        for index in range(count):
            master = HostBuffer(NBYTES)
            master.tensor().fill_(index + 1)
            home = Range(self.driver, frame)
            home.back(0, self.pool.take(LAYER_PAGES, "layer"))
            self.driver.copy(home.address, master.address, NBYTES)
            self.masters.append(master)
            layers.append(LayerFrame(index, home, master.address, NBYTES, self.driver.event()))
        self.compute = HostCompute()
        self.streamer = LayerStreamer(
            self.driver, self.pool, layers, self.compute, chunk_bytes=chunk_bytes
        )

    def run_layer(self, index: int) -> None:
        self.streamer.before(index)
        values = self.streamer.layers[index].range.tensor(0, NBYTES)
        assert int(values.min()) == int(values.max()) == index + 1
        self.streamer.after(index)

    def forward(self, until: int | None = None) -> None:
        for index in range(len(self.streamer.layers) if until is None else until):
            self.run_layer(index)

    def check(self) -> None:
        self.streamer.check_integrity()
        self.pool.check_integrity()
        self.driver.check_integrity()
        held = (len(self.streamer.layers) - self.streamer.layers_remapped) * LAYER_PAGES
        assert self.pool.in_use_bytes == held * PAGE

    def close(self) -> None:
        self.streamer.close()
        self.driver.close()
        for master in self.masters:
            master.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 7), st.integers(1, 2)),
        st.tuples(st.just("absent"), st.just(0), st.just(0)),
        st.tuples(st.just("forward"), st.just(0), st.just(0)),
        st.tuples(st.just("aborted"), st.integers(0, 7), st.just(0)),
    ),
    max_size=12,
)


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(
    count=st.integers(3, 8), steps=STEPS, chunk=st.sampled_from([None, 999, PAGE, NBYTES, 1 << 30])
)
def test_every_layer_reads_its_own_parameters(
    count: int, steps: list[tuple[str, int, int]], chunk: int | None
) -> None:
    model = Model(count, chunk_bytes=chunk)
    try:
        for what, number, slots in steps:
            if what == "set":
                model.streamer.set(min(number, count - slots), slots)
            elif what == "absent":
                model.streamer.set(count, 0)
            elif model.streamer.absent:
                with pytest.raises(TransferError, match="no layer of the model has memory"):
                    model.streamer.begin()
            elif what == "forward":
                model.forward()
            else:
                model.forward(until=min(number, count))
            model.check()
        model.streamer.set(0, 1)
        model.forward()
        model.check()
        assert model.streamer.streaming is False
    finally:
        model.close()


def test_a_layer_is_copied_in_chunks_and_counted_once() -> None:
    model = Model(3, chunk_bytes=PAGE)
    try:
        copied, copy = [], model.streamer.copies.copy
        model.streamer.copies.copy = lambda *one: copied.append(one[2]) or copy(*one)  # type: ignore[method-assign, func-returns-value]
        model.streamer.set(1, 1)
        model.streamer.bytes_streamed = 0
        model.forward()
        loads = model.streamer.bytes_streamed // NBYTES
        assert loads > 0 and sum(copied) >= loads * NBYTES
        assert copied[:LAYER_PAGES] == [PAGE] * (LAYER_PAGES - 1) + [PAGE - 100]
    finally:
        model.close()


@pytest.mark.parametrize("slots", [1, 2])
def test_a_slow_link_stalls_but_never_lies(slots: int) -> None:
    model = Model(6, link=2e6)
    try:
        model.streamer.set(3, slots)
        model.forward()
        model.forward()
        assert model.compute.stall_s > 0
        model.streamer.set(0, slots)
        model.forward()
        model.check()
    finally:
        model.close()


def test_given_away_memory_can_be_taken_and_must_come_back_first() -> None:
    model = Model(6)
    try:
        model.streamer.set(2, 2)
        borrowed = model.pool.take(2 * LAYER_PAGES, "kv")
        with pytest.raises(GrantExceeded):
            model.streamer.set(1, 2)
        assert (model.streamer.layers_remapped, model.streamer.stream_slots) == (2, 2)
        model.forward()
        model.pool.give(borrowed)
        model.streamer.set(0, 2)
        model.forward()
        model.check()
    finally:
        model.close()


@pytest.mark.parametrize("after", [(0, 1), (3, 1), (2, 2), (5, 1)])
@pytest.mark.parametrize("before", [(0, 1), (3, 1), (2, 2)])
def test_all_layers_may_be_absent_and_come_back_from_their_masters(before, after) -> None:
    model = Model(6)
    try:
        model.streamer.set(*before)
        model.forward()
        model.streamer.set(6, 0)
        model.check()
        assert model.streamer.absent and model.pool.in_use_bytes == 0
        with pytest.raises(TransferError, match="no layer of the model has memory"):
            model.streamer.begin()
        model.streamer.bytes_streamed = 0
        model.streamer.set(*after)
        frames = 6 - after[0]
        assert model.streamer.bytes_streamed == frames * NBYTES, "one layer in each frame"
        model.streamer.begin()
        model.forward()
        model.check()
    finally:
        model.close()


def test_layers_may_go_while_they_arrive() -> None:
    model = Model(6, link=2e6)
    try:
        for after in ((0, 1), (3, 2), (0, 1)):
            model.streamer.set(6, 0)
            model.streamer.set(*after)
        model.streamer.set(6, 0)
        model.check()
        model.streamer.set(0, 1)
        model.forward()
        model.check()
    finally:
        model.close()


def test_memory_that_is_lacking_leaves_layers_absent() -> None:
    model = Model(6)
    try:
        model.streamer.set(6, 0)
        borrowed = model.pool.take(5 * LAYER_PAGES + 1, "kv")
        with pytest.raises(GrantExceeded):
            model.streamer.set(5, 1)
        assert model.streamer.absent
        model.pool.give(borrowed)
        model.streamer.set(5, 1)
        model.forward()
        model.check()
    finally:
        model.close()


def test_layers_that_come_back_are_loaded_while_the_next_get_memory(monkeypatch) -> None:
    model = Model(6, poison=False)
    create, begun = model.driver.create, []

    def seen(count: int):
        begun.append((count, model.streamer.bytes_streamed // NBYTES))
        return create(count)

    try:
        for target, layers in (((0, 0), 6), ((3, 2), 3)):
            model.streamer.set(6, 0)
            model.pool.trim()
            model.streamer.bytes_streamed, begun[:] = 0, []
            with monkeypatch.context() as patch:
                patch.setattr(model.driver, "create", seen)
                model.streamer.set(*target)
            assert begun == [(LAYER_PAGES, number) for number in range(layers)]
            model.forward()
            model.check()
    finally:
        model.close()


@pytest.mark.parametrize("target", [(0, 0), (1, 2)])
@pytest.mark.parametrize("call", ["create", "map"])
@pytest.mark.parametrize("had", [0, 1, 2, 4])
def test_layers_come_back_all_or_none(had: int, call: str, target, monkeypatch) -> None:
    """All layers are away and come back, while the device refuses memory after `had` calls, perhaps
    between two layers of a slot. Then all are still away, and the next attempt succeeds.
    """
    model, calls = Model(6, poison=False), []
    made = getattr(model.driver, call)

    def refusing(*args: object):
        calls.append(args)
        if len(calls) > had:
            raise OutOfMemory("as much as there is")
        return made(*args)

    try:
        model.streamer.set(6, 0)
        model.pool.trim()
        with monkeypatch.context() as patch:
            patch.setattr(model.driver, call, refusing)
            with pytest.raises(OutOfMemory, match="as much"):
                model.streamer.set(*target)
        model.check()
        assert model.streamer.absent and model.pool.in_use_bytes == 0
        model.streamer.set(*target)
        model.forward()
        model.check()
    finally:
        model.close()


def test_the_memory_of_a_layer_that_goes_is_free_before_the_next_goes(monkeypatch) -> None:
    model, held = Model(4, poison=False), []
    unmap = model.driver.unmap

    def seen(address: int, nbytes: int) -> None:
        unmap(address, nbytes)
        held.append(model.driver.used_bytes() // (LAYER_PAGES * PAGE))

    try:
        model.pool.set_grant(0)
        monkeypatch.setattr(model.driver, "unmap", seen)
        model.streamer.set(4, 0)
        assert held == [4, 3, 2, 1] and model.driver.used_bytes() == 0
    finally:
        monkeypatch.undo()
        model.close()


def test_who_touches_an_absent_layer_faults() -> None:
    script = (
        "from tests.vmm.test_transfer import Model; m = Model(4); m.streamer.set(4, 0);"
        "m.run_layer(2)"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGSEGV


def test_more_layers_than_there_are_is_refused() -> None:
    model = Model(4)
    try:
        with pytest.raises(TransferError, match="4 layers remapped and 1 slots"):
            model.streamer.set(4, 1)
        with pytest.raises(TransferError, match="3 layers remapped, 0 slots"):
            model.streamer.set(3, 0)
        model.forward()
    finally:
        model.close()


@pytest.mark.parametrize("more", [1, -1])
def test_one_layer_more_or_less_leaves_the_others_of_its_ring_mapped(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(8, poison=False)
    try:
        model.streamer.set(4, 1)
        model.forward()
        calls = []
        for name in ("back", "unback"):
            original = getattr(Range, name)

            def counted(*args, original=original, name=name):
                calls.append(name)
                return original(*args)

            monkeypatch.setattr(Range, name, counted)
        model.streamer.set(4 + more, 1)
        monkeypatch.undo()
        assert sorted(calls) == ["back", "unback"]
        model.forward()
        model.check()
    finally:
        model.close()


def test_streaming_copies_every_streamed_layer_once_per_step() -> None:
    model = Model(8)
    try:
        model.streamer.set(3, 2)
        model.forward()
        before = model.streamer.bytes_streamed
        for _ in range(3):
            model.forward()
        assert model.streamer.bytes_streamed - before == 3 * 5 * NBYTES
    finally:
        model.close()
