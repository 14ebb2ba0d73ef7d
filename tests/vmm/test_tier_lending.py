"""Memory of another GPU for the pool: real holder processes, over the stand-in for libcuda."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from threading import Thread, Timer

import pytest
from cuda.bindings import driver as cu

from mirage.tiers.blocks import Name
from mirage.tiers.contract import Key, LentBy
from mirage.tiers.holes import ByteRange
from mirage.tiers.lending import engine_line, holder
from mirage.tiers.lending.borrower import Borrower
from mirage.tiers.lending.lenders import HolderRefused, Lenders
from mirage.tiers.lending.messages import (
    Copied,
    Copy,
    Drop,
    Dropped,
    FromHolder,
    FromServer,
    Here,
    LendMemory,
    Returned,
    ReturnMemory,
    ToEngine,
    Want,
)
from mirage.tiers.region import Region
from mirage.wire import Broken, Channel
from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda import StandIn
from tests.vmm.libcuda.lending import program
from vmm.cuda import CudaDriver
from vmm.cuda_calls import call
from vmm.cuda_device import POSIX_FD, access, allocation
from vmm.cuda_slab import Slab, check_reachable
from vmm.driver import DeviceError, DeviceUnavailable, Misaligned

pytestmark = pytest.mark.vmm

PAGE = 65536
MEMORY = 32 * PAGE
BASE = 1 << 20
"""First offset of the peer's memory in the pool."""
PEER = "gpu1"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "device"
    path.touch()
    return path


@pytest.fixture
def standin(shared: Path) -> Iterator[StandIn]:
    made = loaded()
    made.reset(memory_bytes=MEMORY, granularity=PAGE)
    made.flags(devices=2)
    made.share(str(shared))
    yield made
    assert not any(made.leaks().values()), made.leaks()
    made.reset()


@pytest.fixture
def near(standin: StandIn) -> Iterator[CudaDriver]:
    with CudaDriver(device=0, tensors_on="cpu") as made:
        yield made


@pytest.fixture
def far(standin: StandIn) -> Iterator[CudaDriver]:
    """Driver of GPU 1, by which the test takes its memory and sees how much is used."""
    with CudaDriver(device=1, shareable=True, tensors_on="cpu") as made:
        yield made


def used(gpu: CudaDriver) -> int:
    free, total = gpu.memory_info()
    return total - free


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def can_use(engine: Borrower) -> bool:
    try:
        engine.use(0)
    except KeyError:
        return False
    engine.let_go(0)
    return True


class Told:
    """An `Owner` of lent memory that records its calls."""

    def __init__(self) -> None:
        self.words: list[tuple[object, ...]] = []

    def moved(self, name: Name, *, whole: bool) -> None:
        self.words.append(("moved", name, whole))

    def returned(self, offset: int) -> None:
        self.words.append(("returned", offset))

    def lent_in_vain(self, offset: int) -> None:
        self.words.append(("lent_in_vain", offset))

    def lost(self, device: str) -> None:
        self.words.append(("lost", device))


class World:
    """One holder of GPU 1's memory, the server's end of its connection, and host memory for moved
    blocks.
    """

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.told, self.host = Told(), Region.create(4 * PAGE)
        self.lenders = Lenders({PEER: 1}, lambda name: folder / f"{name}.sock", words)
        size = {PEER: 16 * PAGE}
        self.by = self.lenders.start(self.told, self.host.fd, {PEER: BASE}, size)

    def lend(self, start: int, pages: int = 1) -> bool:
        return self.lenders.lend(PEER, ByteRange(BASE + start, pages * PAGE))

    def take_back(self, start: int) -> bool:
        return self.lenders.take_back(PEER, ByteRange(BASE + start, PAGE))

    def kill(self) -> None:
        os.kill(self.lenders.pids()[PEER], signal.SIGKILL)

    def close(self) -> None:
        self.lenders.end()
        self.host.close()


@pytest.fixture
def world(tmp_path: Path, shared: Path, standin: StandIn) -> Iterator[World]:
    made = World(tmp_path, program(shared, MEMORY, PAGE))
    yield made
    made.close()


@pytest.fixture
def engines(world: World, near: CudaDriver) -> Iterator[Callable[[], Borrower]]:
    made: list[Borrower] = []

    def engine() -> Borrower:
        made.append(Borrower(world.by, partial(Slab.borrow, near)))
        return made[-1]

    yield engine
    for each in made:
        each.close()


Engines = Callable[[], Borrower]


def test_memory_is_made_on_the_peer_and_copied_from_the_engines_own_device(
    world: World, near: CudaDriver, far: CudaDriver, engines: Engines, standin: StandIn
) -> None:
    assert world.by == (LentBy(world.by[0].socket, 0, 16 * PAGE),)
    a, b = engines(), engines()
    assert world.lend(0, 2)
    here = near.reserve(PAGE)
    near.map(here, near.create(1))
    near.fill(here, 5, PAGE)
    there = a.use(PAGE + 4096)
    assert used(far) == 2 * PAGE, "memory of device 1, counted once"
    stream = near.stream()
    stream.copy(there, here, 4096)
    stream.synchronize()
    back = b.use(PAGE + 4096)
    assert back != there and ctypes.string_at(back, 4096) == b"\5" * 4096
    stream.close()
    a.let_go(PAGE + 4096)
    b.let_go(PAGE + 4096)
    assert near.used_bytes() == PAGE, "what is borrowed is none of its own"
    assert "cuMemcpyPeerAsync" not in standin.calls()
    assert "cuCtxEnablePeerAccess" not in standin.calls()


def test_it_is_gone_when_the_last_engine_has_let_go(
    world: World, far: CudaDriver, engines: Engines
) -> None:
    a, b = engines(), engines()
    world.lend(0)
    for engine in (a, b):
        engine.use(0)
    assert world.take_back(0)
    a.let_go(0)
    for engine in (a, b):  # each has heard that it is to let go
        eventually(lambda engine=engine: not can_use(engine))
    assert used(far) == PAGE and world.told.words == []
    b.let_go(0)
    eventually(lambda: world.told.words == [("returned", BASE)])
    assert used(far) == 0
    world.lend(0)
    assert a.use(0), "the same bytes may be lent again"
    a.let_go(0)


def test_an_engine_that_ends_lets_go(world: World, far: CudaDriver, engines: Engines) -> None:
    a, b = engines(), engines()
    world.lend(0)
    for engine in (a, b):
        engine.use(0)
    a.close()
    b.let_go(0)
    world.take_back(0)
    eventually(lambda: world.told.words == [("returned", BASE)])
    assert used(far) == 0


def test_a_place_that_the_holder_has_not_heard_of_is_waited_for(
    world: World, engines: Engines
) -> None:
    later = Timer(0.05, lambda: world.lend(4 * PAGE))
    later.start()
    engine = engines()
    assert engine.use(4 * PAGE)
    engine.let_go(4 * PAGE)
    with pytest.raises(KeyError):
        engine.use(16 * PAGE)


def test_blocks_are_moved_to_host_memory(world: World, engines: Engines) -> None:
    engine, name = engines(), Name(b"f", Key(b"k"))
    world.lend(0)
    ctypes.memset(engine.use(4096), 7, 4096)
    engine.let_go(4096)
    assert world.lenders.move(PEER, name, ByteRange(BASE + 4096, 4096), PAGE)
    eventually(lambda: world.told.words == [("moved", name, True)])
    assert bytes(world.host.memory[PAGE : PAGE + 4096]) == b"\7" * 4096
    assert not any(world.host.memory[:PAGE])
    world.lenders.move(PEER, name, ByteRange(BASE + 8 * PAGE, 4096), PAGE)
    eventually(lambda: world.told.words[1:] == [("moved", name, False)])


def channels() -> tuple[Channel[FromHolder], Channel[FromServer]]:
    """The server's end and the holder's end of a connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours, FromHolder), Channel(theirs, FromServer)


def test_what_goes_to_host_memory_is_locked_neither_there_nor_each_time(
    tmp_path: Path, standin: StandIn, far: CudaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, "BOUNCE_BYTES", 8192)
    server, theirs = channels()
    with closing(server), closing(theirs), closing(Region.create(2 * PAGE)) as host:
        lending = holder.Holder(far, theirs, tmp_path / "s", host)
        lending._obey(LendMemory(0, PAGE))
        found = lending._lent.get(0)
        assert found is not None and found.slab is not None
        content = bytes(range(250)) * 80
        ctypes.memmove(found.slab.address + 4096, content, len(content))
        for number in range(3):
            lending._obey(Copy(number, 4096, PAGE, len(content)))
            assert server.wait()[0] == Copied(number, whole=True)
        assert bytes(host.memory[PAGE : PAGE + len(content)]) == content
        assert not any(host.memory[PAGE + len(content) :])
        assert standin.calls()["cuMemHostRegister"] == 1
        found.slab.close()
        lending._door.close()


def test_an_engine_that_is_slow_to_read_is_told_everything(
    tmp_path: Path, standin: StandIn, far: CudaDriver
) -> None:
    """A holder has more messages for an engine than the socket's buffer has room for. All of them
    arrive, and other work goes on.
    """
    server, theirs = channels()
    engine: Channel[ToEngine] = Channel(
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), ToEngine, most_descriptors=1
    )
    with closing(theirs), closing(engine), closing(Region.create(PAGE)) as host:
        lending = holder.Holder(far, theirs, tmp_path / "s", host)
        thread = Thread(target=partial(suppressed, lending.run))
        thread.start()
        for each in (engine, server):
            each.socket.settimeout(20)
        engine.socket.connect(str(tmp_path / "s"))
        for offset in range(0, 16 * PAGE, PAGE):
            server.say(LendMemory(offset, PAGE))
            engine.say(Want(offset))
            message, fds = engine.wait()
            assert message == Here(offset, PAGE)
            os.close(*fds)
        keys = lending._selector.get_map().values()
        (line,) = (key.data for key in keys if key.data is not None)
        line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        for offset in range(0, 16 * PAGE, PAGE):
            server.say(ReturnMemory(offset))
        eventually(lambda: line.unsent > 0)
        for offset in range(0, 16 * PAGE, PAGE):
            assert engine.wait()[0] == Drop(offset)
            engine.say(Dropped(offset))
            assert server.wait()[0] == Returned(offset)
        server.close()
        thread.join()
        lending._door.close()


def suppressed(run: Callable[[], None]) -> None:
    with suppress(Broken):
        run()


def test_a_peer_without_memory_says_so(
    world: World, far: CudaDriver, engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    pages = far.create(MEMORY // PAGE)
    world.lend(0)
    eventually(lambda: world.told.words == [("lent_in_vain", BASE)])
    assert "lends less than it may" in caplog.text and "OUT_OF_MEMORY" in caplog.text
    with pytest.raises(KeyError):
        engines().use(0)
    world.take_back(0)
    eventually(lambda: world.told.words[1:] == [("returned", BASE)])
    far.release(pages)


def test_a_killed_holder_is_heard_of_and_what_is_copied_stays(
    world: World, far: CudaDriver, engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    engine = engines()
    world.lend(0)
    world.lend(PAGE)
    address = engine.use(0)
    engine.use(PAGE)
    engine.let_go(PAGE)
    ctypes.memset(address, 3, PAGE)
    world.kill()
    eventually(lambda: ("lost", PEER) in world.told.words)
    eventually(lambda: used(far) == PAGE)  # nobody uses the other one
    assert ctypes.string_at(address, PAGE) == b"\3" * PAGE
    with pytest.raises(KeyError):
        engine.use(PAGE)
    assert not world.lend(2 * PAGE) and not world.take_back(0)
    engine.let_go(0)
    assert used(far) == 0
    assert sum("is lost" in record.message for record in caplog.records) == 2, "one at each end"


def test_a_holder_that_hangs_is_waited_for_once(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, pid = engines(), world.lenders.pids()[PEER]
    world.lend(0)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(engine_line, "WANT_S", 0.1)
    assert not can_use(engine)
    monkeypatch.setattr(engine_line, "WANT_S", 1e6)  # a second wait would not end
    assert not can_use(engine)
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: can_use(engine))


def test_what_was_asked_of_a_killed_holder_comes_to_nothing(world: World, engines: Engines) -> None:
    engine, name = engines(), Name(b"f", Key(b"k"))
    world.lend(0)
    engine.use(0)
    world.take_back(0)
    os.kill(world.lenders.pids()[PEER], signal.SIGSTOP)
    world.lenders.move(PEER, name, ByteRange(BASE, 4096), 0)
    world.kill()
    eventually(lambda: len(world.told.words) == 3)
    assert world.told.words == [("lost", PEER), ("moved", name, False), ("returned", BASE)]
    engine.let_go(0)


def test_the_holder_ends_with_its_server(world: World) -> None:
    process = world.lenders._lenders[PEER]._process
    world.lenders.end()
    assert process.returncode == 0


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path, shared: Path, standin: StandIn) -> None:
    lenders = Lenders({PEER: 2}, lambda name: tmp_path / name, program(shared, MEMORY, PAGE))
    with (
        closing(Region.create(PAGE)) as host,
        pytest.raises(HolderRefused, match=r"^gpu1: there is no NVIDIA device 2: 2 can be seen"),
    ):
        lenders.start(Told(), host.fd, {PEER: 0}, {PEER: PAGE})


def test_a_holder_that_cannot_be_started_is_refused(tmp_path: Path, standin: StandIn) -> None:
    for words in (["/nowhere/at/all"], ["/bin/false"]):
        lenders = Lenders({PEER: 1}, lambda name: tmp_path / name, words)
        with (
            closing(Region.create(PAGE)) as host,
            pytest.raises(HolderRefused, match=r"^gpu1: "),
        ):
            lenders.start(Told(), host.fd, {PEER: 0}, {PEER: PAGE})


class TestSlabs:
    def test_sizes(self, far: CudaDriver) -> None:
        with pytest.raises(Misaligned, match="granularity"):
            Slab.lend(far, PAGE // 2)

    def test_under_a_copy_it_is_not_unmapped(self, standin: StandIn, far: CudaDriver) -> None:
        slab, stream = Slab.lend(far, 2 * PAGE), far.stream()
        standin.delay(60)  # until it is let go
        stream.copy(slab.address, slab.address + PAGE, PAGE)
        with pytest.raises(DeviceError, match="cuMemUnmap"):
            slab.close()
        standin.delay(0)
        stream.close()
        slab.close()
        slab.close()

    @pytest.mark.parametrize("refused", ["cuMemMap", "cuMemSetAccess", "cuMemAddressReserve"])
    def test_nothing_is_left_of_one_that_fails(
        self, standin: StandIn, far: CudaDriver, refused: str
    ) -> None:
        before = standin.leaks()
        standin.fail(1, refused, 1)
        with pytest.raises(DeviceError, match=refused):
            Slab.lend(far, PAGE)
        assert standin.leaks() == before

    def test_which_gpus_reach_each_other(self, standin: StandIn) -> None:
        check_reachable(0, 1)
        with pytest.raises(DeviceUnavailable, match="GPU 0 is the engines' own"):
            check_reachable(0, 0)
        standin.peers(False)
        with pytest.raises(DeviceUnavailable, match="GPU 0 cannot reach the memory of GPU 1"):
            check_reachable(0, 1)


class TestTheStandIn:
    """Rules of the stand-in that are stricter than the driver's, so that each of these faults would
    be noticed.
    """

    def imported(self, near: CudaDriver, far: CudaDriver) -> tuple[int, int, Slab]:
        """Page of GPU 1 imported and mapped for GPU 0 without access rights: handle, address, and
        the lent slab.
        """
        lent = Slab.lend(far, PAGE)
        fd = lent.export()
        with near.opened():
            handle = call(cu.cuMemImportFromShareableHandle, fd, POSIX_FD)
            address = int(call(cu.cuMemAddressReserve, PAGE, PAGE, 0, 0))
            call(cu.cuMemMap, address, PAGE, 0, handle, 0)
        os.close(fd)
        return handle, address, lent

    def drop(self, near: CudaDriver, handle: int, address: int, lent: Slab) -> None:
        with near.opened():
            call(cu.cuMemUnmap, address, PAGE)
            call(cu.cuMemRelease, handle)
            call(cu.cuMemAddressFree, address, PAGE)
        lent.close()

    def test_a_closed_descriptor(self, near: CudaDriver, far: CudaDriver) -> None:
        lent = Slab.lend(far, PAGE)
        fd = lent.export()
        os.close(fd)
        with pytest.raises(DeviceError, match="cuMemImportFromShareableHandle"):
            Slab.borrow(near, fd, PAGE)
        lent.close()

    def test_a_size_that_is_not_its_own(self, near: CudaDriver, far: CudaDriver) -> None:
        lent = Slab.lend(far, PAGE)
        fd = lent.export()
        with pytest.raises(DeviceError, match="cuMemMap"):
            Slab.borrow(near, fd, 2 * PAGE)
        os.close(fd)
        lent.close()

    def test_a_copy_without_access(
        self, standin: StandIn, near: CudaDriver, far: CudaDriver
    ) -> None:
        handle, address, lent = self.imported(near, far)
        here = near.reserve(PAGE)
        near.map(here, near.create(1))
        with closing(near.stream()) as stream, pytest.raises(DeviceError, match="cuMemcpyAsync"):
            stream.copy(here, address, PAGE)
        assert "no access was set" in standin.last_words()
        self.drop(near, handle, address, lent)

    def test_access_for_a_gpu_that_does_not_reach_it(
        self, standin: StandIn, near: CudaDriver, far: CudaDriver
    ) -> None:
        lent = Slab.lend(far, PAGE)
        fd = lent.export()
        standin.peers(False)
        with pytest.raises(DeviceError, match=r"cuMemSetAccess.*INVALID_CONTEXT"):
            Slab.borrow(near, fd, PAGE)
        standin.peers(True)
        os.close(fd)
        lent.close()

    def test_release_while_it_is_mapped(
        self, standin: StandIn, near: CudaDriver, far: CudaDriver
    ) -> None:
        handle, address, lent = self.imported(near, far)
        with near.opened(), pytest.raises(DeviceError, match="cuMemRelease"):
            call(cu.cuMemRelease, handle)
        assert "still mapped" in standin.last_words()
        with near.opened():
            call(cu.cuMemSetAccess, address, PAGE, [access(allocation(0).location)], 1)
        self.drop(near, handle, address, lent)
