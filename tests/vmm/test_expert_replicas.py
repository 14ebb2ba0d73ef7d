"""Copies of cold experts on peers, through the pool's socket: memory of this host, or of a GPU that
another process holds, over the stand-in for libcuda."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirage.engine.tiers.expert_replicas import ExpertReplicas, keep_on_peers
from mirage.streaming.compute import Compute, HostCompute, StreamCompute
from mirage.streaming.expert_layout import ExpertLayout, Piece
from mirage.streaming.experts import ExpertStreamer
from mirage.streaming.residency import Expert
from mirage.streaming.transfer import LayerFrame
from mirage.tiers.core import Core
from mirage.tiers.ledger import Due
from mirage.tiers.lending.lenders import Lenders
from mirage.tiers.peer_backing import PeerPlan
from mirage.tiers.server import PoolServer
from tests.settings import engine_settings
from tests.vmm.conftest import PAGE, PAGES
from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda.lending import program
from vmm import Driver, HostDriver, VmmError
from vmm.host import HostBuffer
from vmm.pages import PagePool
from vmm.space import Range

pytestmark = pytest.mark.vmm

LAYERS, COUNT = 2, 4
EXPERTS = ExpertLayout((0, 1), COUNT, (Piece(0, PAGE), Piece(COUNT * PAGE, PAGE)))
"""Two slices of a page each."""
LAYER = 2 * COUNT * PAGE
GONE = 250
"""Byte that overwrites the masters, so that a read of a master differs from a read of a replica."""


class World:
    """Two layers of four experts each, above a pool with one peer; each byte of an expert is its
    number.
    """

    def __init__(self, folder: Path, kind: str, experts: int) -> None:
        self.lenders = None
        if kind == "cuda":
            from vmm.cuda import CudaDriver

            standin = loaded()
            standin.reset(memory_bytes=PAGES * PAGE, granularity=PAGE)
            standin.flags(devices=2)
            (folder / "device").touch()
            standin.share(str(folder / "device"))
            words = program(folder / "device", PAGES * PAGE, PAGE)
            self.lenders = Lenders({"p": 1}, lambda name: folder / f"{name}.sock", words)
            self.driver: Driver = CudaDriver(device=0, tensors_on="cpu")
            stream = self.driver.stream()
            self.compute: Compute = StreamCompute(
                lambda: stream, stream.synchronize, self.driver.event
            )
        else:
            self.driver = HostDriver(page_bytes=PAGE, capacity_bytes=PAGES * PAGE)
            self.compute = HostCompute()
        granule = PAGE if self.lenders else 0
        plan = PeerPlan({"p": experts * EXPERTS.nbytes}, granule=granule)
        self.server = PoolServer(
            folder / "tiers.sock", Core(16 * PAGE, peers=plan), {"t": Due()}, None, self.lenders
        )
        self.server.start()
        self.pool = PagePool(self.driver, PAGES * PAGE)
        self.masters = [HostBuffer(LAYER) for _ in range(LAYERS)]
        layers = [self._layer(index) for index in range(LAYERS)]
        self.streamer = ExpertStreamer(self.driver, self.pool, layers, self.compute, EXPERTS)
        self.socket = folder / "tiers.sock"
        self.replicas = self.join()

    def join(self, weights: bytes = b"w") -> ExpertReplicas:
        settings = engine_settings(base_blocks=0, tier_socket=str(self.socket))
        made = keep_on_peers(self.streamer, settings, weights)
        assert made is not None
        return made

    def _layer(self, index: int) -> LayerFrame:
        master, home = self.masters[index].tensor(), Range(self.driver, LAYER)
        for number in range(COUNT):
            for offset, nbytes in EXPERTS.spans(number):
                master[offset : offset + nbytes] = _byte(index, number)
        self.driver.pin(self.masters[index].address, LAYER)
        home.back(0, self.pool.take(LAYER // PAGE, "layer"))
        self.driver.copy(home.address, self.masters[index].address, LAYER)
        return LayerFrame(index, home, self.masters[index].address, LAYER, self.driver.event())

    def lend(self, experts: int) -> None:
        self.server.resize_peer("p", experts * EXPERTS.nbytes).result()

    @property
    def lent(self) -> int:
        """Number of bytes that the peer has lent."""
        state = self.server.state().peers
        assert state is not None
        return state.devices["p"].held_bytes

    @property
    def held(self) -> set[Expert]:
        return set(self.replicas._addresses)

    def observe(self, layer: int, *numbers: int, times: int = 40) -> None:
        for _ in range(times):
            self.streamer.residency.routing.seen(layer, numbers)

    def computes(self, layer: int, number: int) -> int:
        """Byte with which a step computes that is routed to an expert; all bytes of the expert must
        be equal.
        """
        self.streamer.routed(layer, [number])
        self.compute.synchronize()
        found = set()
        for offset, nbytes in EXPERTS.spans(number):
            home = self.streamer.layers[layer].range.address
            found |= set(self.driver.tensor(home + offset, nbytes).cpu().tolist())
        (byte,) = found
        return byte

    def overwrite_masters(self) -> None:
        for master in self.masters:
            master.tensor().fill_(GONE)

    def close(self) -> None:
        self.replicas.close()
        self.server.stop()
        self.streamer.close()
        self.driver.check_integrity()
        self.driver.close()
        for master in self.masters:
            master.close()


def _byte(layer: int, number: int) -> int:
    return 1 + layer * COUNT + number


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.01)


@pytest.fixture(params=["host", "cuda"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(tmp_path, request.param, experts=8)
    yield made
    made.close()


def test_what_lies_on_a_peer_is_read_from_there(world: World) -> None:
    world.observe(0, 2, 3)
    world.streamer.set(0, 0, 3)
    cold = world.streamer.residency.cold
    assert cold[0] == {0, 1, 2} or 3 in cold[0]
    wanted = {Expert(0, number) for number in cold[0] & {2, 3}}
    eventually(lambda: world.held == wanted)
    world.overwrite_masters()
    (expert,) = list(wanted)[:1]
    assert world.computes(*expert) == _byte(*expert)
    assert world.streamer.replicas_loaded == 1
    other = next(number for number in cold[1])
    assert world.computes(1, other) == GONE  # nobody wished it: from host memory
    assert world.streamer.replicas_loaded == 1
    world.streamer.check_integrity()


def test_memory_that_is_wanted_back_is_left_and_read_no_more(world: World) -> None:
    for layer in range(LAYERS):
        world.observe(layer, 0, 1, 2, 3)
    world.streamer.set(0, 0, 3)
    eventually(lambda: len(world.held) == 6)
    eventually(lambda: world.lent == 6 * EXPERTS.nbytes)
    world.lend(0)
    eventually(lambda: world.lent == 0)
    assert not world.held
    layer, number = 0, min(world.streamer.residency.cold[0])
    assert world.computes(layer, number) == _byte(layer, number)
    assert world.streamer.replicas_loaded == 0
    world.lend(8)
    eventually(lambda: len(world.held) == 6)


@pytest.mark.parametrize("world", ["host"], indirect=True)
def test_memory_goes_back_when_nothing_reads_it_any_more(world: World) -> None:
    world.observe(0, 0, 1, 2, 3)
    world.streamer.set(0, 0, 3)
    eventually(lambda: world.lent == 3 * EXPERTS.nbytes)
    read = threading.Event()
    with world.replicas.lent():
        world.replicas.stream._enqueue(read.wait)  # type: ignore[attr-defined]
    world.lend(0)
    eventually(lambda: not world.held or len(world.held) < 3)
    time.sleep(0.3)  # longer than the picture of the pool is old
    assert world.lent == 3 * EXPERTS.nbytes
    read.set()
    eventually(lambda: world.lent == 0)


@pytest.mark.parametrize("world", ["host"], indirect=True)
def test_a_place_is_left_when_nothing_writes_there_any_more(world: World) -> None:
    fills, written, copied = world.replicas._fills, threading.Event(), []

    def copy(*what: int) -> None:
        copied.append(what)
        if len(copied) > 1:
            raise VmmError("the second slice cannot be copied")
        fills._enqueue(written.wait)  # type: ignore[attr-defined]

    def reserved() -> int:
        state = world.server.state().peers
        assert state is not None
        return state.held.tenants["t"].reserved_bytes

    fills.copy = copy  # type: ignore[method-assign]
    world.observe(0, 0, 1, 2, 3)
    world.streamer.set(0, 0, 3)
    try:
        eventually(lambda: len(copied) > 1)
        time.sleep(0.3)  # longer than the picture of the pool is old
        assert reserved() > 0
    finally:
        written.set()
    eventually(lambda: not reserved())


def test_what_is_given_no_more_needs_no_memory_and_is_found_again(world: World) -> None:
    world.observe(0, 0, 1, 2, 3)
    world.streamer.set(0, 0, 3)
    eventually(lambda: len(world.held) == 3)
    world.streamer.set(0, 0, 0)
    eventually(lambda: not world.held)
    state = world.server.state
    eventually(lambda: not state().peers.held.tenants["t"].pinned_bytes)  # type: ignore[union-attr]
    world.overwrite_masters()
    world.streamer.set(0, 0, 3)
    eventually(lambda: len(world.held) == 3)
    number = min(world.streamer.residency.cold[0])
    assert world.computes(0, number) == _byte(0, number), "made anew from the master"


def test_room_goes_to_those_that_are_used_most(world: World) -> None:
    world.lend(1)
    world.observe(0, 0)
    world.streamer.set(0, 0, 3)
    hot = max(world.streamer.residency.cold[0])
    world.observe(0, hot, times=5)
    world.streamer._wish()
    eventually(lambda: world.held == {Expert(0, hot)})
    other = next(n for n in world.streamer.residency.cold[1])
    world.observe(1, other)
    world.streamer._wish()
    eventually(lambda: world.held == {Expert(1, other)})


@pytest.mark.parametrize("world", ["host"], indirect=True)
def test_one_that_others_are_slow_to_leave_holds_nobody_up(world: World) -> None:
    world.observe(0, 0, 1, 2, 3)
    world.observe(0, 3)  # the most wanted one of all that can be cold
    world.streamer.set(0, 0, 3)
    cold = {Expert(0, number) for number in world.streamer.residency.cold[0]}
    eventually(lambda: world.held == cold)
    slow = world.join()
    slow._give_up = lambda expert: None  # type: ignore[method-assign]
    best = world.replicas._wishes[0]
    slow.wish([best])
    eventually(lambda: set(slow._addresses) == {best.expert})
    world.lend(0)
    eventually(lambda: not world.held)
    world.lend(8)
    eventually(lambda: world.held == cold - {best.expert})
    slow.close()
    eventually(lambda: world.held == cold)


def test_without_a_pool_experts_come_from_host_memory(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for layer in range(LAYERS):
        world.observe(layer, 0, 1, 2, 3)
    world.streamer.set(0, 0, 3)
    eventually(lambda: len(world.held) == 6)
    world.server.stop()
    eventually(lambda: not world.held)
    assert "experts are loaded from host memory" in caplog.text
    number = min(world.streamer.residency.cold[0])
    assert world.computes(0, number) == _byte(0, number)
