"""An engine on a GPU locks each slab of the pool once, and unlocks it before a hole is punched."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirage.engine.tiers.copier import Copier, CopyJob
from mirage.engine.tiers.pool_memory import PoolMemory
from mirage.streaming.compute import StreamCompute
from mirage.tiers.client import PoolClient
from mirage.tiers.contract import BlockPlace, Key, Lookup, Medium, Member
from mirage.tiers.core import Core
from mirage.tiers.holes import ByteRange
from mirage.tiers.ledger import Due
from mirage.tiers.lending import engine_line
from mirage.tiers.lending.messages import Gone, Want
from mirage.tiers.region import Region
from mirage.tiers.server import PoolServer
from mirage.tiers.space import PAGE as BLOCK
from tests.vmm.conftest import PAGE, PAGES
from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda import StandIn

pytestmark = pytest.mark.vmm
BLOCKS = 16
"""Number of blocks on the device."""
BUDGET = 512 * BLOCK
SLAB = 4
"""Blocks of a slab."""


def keys(numbers: range) -> list[Key]:
    return [Key(b"%d" % number) for number in numbers]


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until, "it never came about"
        time.sleep(0.002)


class Pool:
    """A host pool that punches no slab which an engine has locked; its engines run
    in this process.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.engines = path, list[Engine]()
        self.wrongly = list[ByteRange]()
        """Punched while locked."""
        punch = Region.punch

        def checked(region: Region, hole: ByteRange) -> None:
            if any(engine.has_locked(hole) for engine in self.engines):
                self.wrongly.append(hole)
            punch(region, hole)

        monkeypatch.setattr(Region, "punch", checked)
        self.server = PoolServer(path, Core(BUDGET), {"a": Due(), "b": Due()})
        self.server.start()

    @property
    def region(self) -> Region:
        return self.server._acting.regions.host

    @property
    def counted(self) -> int:
        """Number of blocks in use, asked in the pool's thread, so that it is up to date."""
        state = self.server._asked(self.server._core.state)
        assert state is not None
        return state.used_bytes // BLOCK

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        self.server.stop()
        assert not self.wrongly


class Engine:
    """`BLOCKS` blocks on a GPU of the driver's stand-in, and an engine's end of the pool."""

    def __init__(self, pool: Pool, tenant: str = "a") -> None:
        from vmm.cuda import CudaDriver

        self.driver = CudaDriver(tensors_on="cpu")
        self.device = self.driver.reserve(PAGE)
        self.pages = self.driver.create(1)
        self.driver.map(self.device, self.pages)
        self.pool = PoolClient(pool.path, Member(tenant, b"weights", BLOCK, locks=True), 10)
        self.memory = PoolMemory(self.pool, self.driver, BLOCK)
        self.stream = stream = self.driver.stream()
        compute = StreamCompute(lambda: stream, stream.synchronize, self.driver.event)
        self.copier = Copier(self.driver, compute, self.runs, self.memory.use, self.memory.let_go)
        self.start = self.memory._mapped[Medium.HOST][0]
        pool.engines.append(self)

    def runs(self, block: int) -> list[tuple[int, int]]:
        return [(self.device + block * BLOCK, BLOCK)]

    @property
    def locked(self) -> int:
        """Number of blocks' worth of host memory that the engine has locked."""
        return sum(self.driver._pinned.values()) // BLOCK

    def has_locked(self, hole: ByteRange) -> bool:
        start, end = self.start + hole.offset, self.start + hole.offset + hole.nbytes
        pinned = list(self.driver._pinned.items())
        return any(at < end and start < at + nbytes for at, nbytes in pinned)

    def begin(self, numbers: range) -> CopyJob:
        """Begin to copy block n of the device to the place of key n in the pool."""
        places = self.pool.reserve(keys(numbers))
        job = CopyJob(False, [n % BLOCKS for n in numbers], [places[key] for key in keys(numbers)])
        self.copier.submit(job)
        self.copier.pump()
        return job

    def end(self, job: CopyJob, numbers: range) -> None:
        self.copier.wait(up=False)
        assert self.copier.finished(up=False) == [job] and not job.failed
        self.pool.commit(keys(numbers))

    def store(self, numbers: range) -> None:
        for number in numbers:
            self.driver.fill(self.device + number % BLOCKS * BLOCK, number % 256, BLOCK)
            job = self.begin(range(number, number + 1))
            self.end(job, range(number, number + 1))

    def find(self, numbers: range, request: str = "r") -> list[BlockPlace]:
        self.pool.seek(request, keys(numbers))
        eventually(
            lambda: all(self.pool.found(request, k) is not Lookup.UNKNOWN for k in keys(numbers))
        )
        return self.pool.places(request, keys(numbers))

    def load(self, numbers: range) -> None:
        """Load these blocks from the pool, and check that each is what was stored."""
        for number, place in zip(numbers, self.find(numbers), strict=True):
            job = CopyJob(True, [0], [place])
            self.copier.submit(job)
            self.copier.wait(up=True)
            assert self.copier.finished(up=True) == [job] and not job.failed
            assert self.driver.tensor(self.device, BLOCK).eq(number % 256).all()
        self.pool.leave("r")

    def close(self) -> None:
        self.copier.close()
        self.memory.close()
        assert self.locked == 0
        self.pool.close()
        self.stream.close()
        self.driver.close()


@pytest.fixture
def standin() -> Iterator[StandIn]:
    made = loaded()
    made.reset(memory_bytes=PAGES * PAGE, granularity=PAGE)
    yield made
    assert not any(made.leaks().values()), made.leaks()
    made.reset()


@pytest.fixture
def pool(standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    made = Pool(tmp_path / "s", monkeypatch)
    yield made
    standin.delay(0)
    made.close()


def registered(standin: StandIn) -> int:
    return standin.calls().get("cuMemHostRegister", 0)


def test_a_slab_is_locked_once(standin: StandIn, pool: Pool) -> None:
    engine = Engine(pool)
    engine.store(range(40))
    assert registered(standin) == 40 / SLAB and engine.locked == 40
    for _ in range(2):
        engine.load(range(40))
    assert registered(standin) == 40 / SLAB
    assert pool.region.used_bytes() == pool.counted * BLOCK == 40 * BLOCK


def test_an_engine_at_rest_lets_go_of_what_is_to_be_punched(standin: StandIn, pool: Pool) -> None:
    """The pool shrinks while an engine makes no calls. A thread of the engine hears the order and
    unlocks slabs, so other engines get the memory.
    """
    engine = Engine(pool)
    engine.store(range(400))
    pool.server.resize(20 * BLOCK).result()
    eventually(lambda: pool.counted == 20)
    assert engine.locked == 20 and pool.region.used_bytes() == 20 * BLOCK
    pool.server.resize(BUDGET).result()
    Engine(pool, "b").store(range(1000, 1200))
    engine.load(range(1000, 1200))


def test_what_is_copied_stays_locked_until_the_copy_has_ended(standin: StandIn, pool: Pool) -> None:
    engine = Engine(pool)
    standin.delay(1e6)
    job = engine.begin(range(2))
    pool.server.resize(0).result()
    assert engine.locked == SLAB and pool.counted == SLAB
    standin.delay(0)
    engine.end(job, range(2))
    eventually(lambda: pool.counted == 0)
    assert engine.locked == 0 and pool.region.used_bytes() == 0


def test_a_slab_that_a_copy_uses_is_good_for_another_one(standin: StandIn, pool: Pool) -> None:
    engine = Engine(pool)
    engine.store(range(SLAB))
    places, slabs = engine.find(range(2)), engine.memory._slabs
    assert slabs is not None
    standin.delay(1e6)
    jobs = [CopyJob(True, [block], [places[block]]) for block in range(2)]
    for job in jobs:
        engine.copier.submit(job)
        engine.copier.pump()
        pool.server.resize(0).result()
        eventually(lambda: bool(slabs._dropping))
    assert registered(standin) == 1 and engine.locked == SLAB
    standin.delay(0)
    engine.copier.wait(up=True)
    assert engine.copier.finished(up=True) == jobs and engine.locked == 0
    engine.pool.leave("r")


def test_in_a_slab_that_retires_places_are_locked_alone(standin: StandIn, pool: Pool) -> None:
    engine = Engine(pool)
    engine.store(range(SLAB))
    engine.find(range(1), "other")
    pool.server.resize(0).result()
    eventually(lambda: engine.locked == 0)
    eventually(lambda: pool.counted == 1)
    assert pool.region.used_bytes() == BLOCK
    before = registered(standin)
    engine.load(range(1))
    assert registered(standin) == before + 1 and engine.locked == 0
    assert pool.region.used_bytes() == BLOCK
    engine.pool.leave("other")
    eventually(lambda: pool.counted == 0)


def test_who_is_slow_to_hear_is_told_everything(standin: StandIn, pool: Pool) -> None:
    """An engine does not read its messages, which are more than the socket's buffer holds. Other
    engines are served meanwhile, and all messages arrive later.
    """
    engine = Engine(pool)
    engine.store(range(400))
    slabs = engine.memory._slabs
    assert slabs is not None
    for line in pool.server._acting.lockers._tenants:
        line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    with slabs._change:
        pool.server.resize(0).result()
        assert pool.counted == 400 and engine.locked == 400
        pool.server.resize(BUDGET).result()
        Engine(pool, "b").store(range(1000, 1100))
    eventually(lambda: pool.counted == 100)
    assert engine.locked == 0


CHILD = """
import ctypes
import sys
from pathlib import Path
from mirage.engine.tiers.pool_memory import PoolMemory
from mirage.tiers.client import PoolClient
from mirage.tiers.contract import Key, Member
from tests.vmm.libcuda import StandIn

StandIn.load()
from vmm.cuda import CudaDriver
block = int(sys.argv[2])
pool = PoolClient(Path(sys.argv[1]), Member("b", b"weights", block, locks=True), 10)
memory = PoolMemory(pool, CudaDriver(tensors_on="cpu"), block)
places = pool.reserve([Key(b"%d" % number) for number in range(8)])
for place in places.values():
    ctypes.memset(memory.use(place), 1, block)
    memory.let_go(place)
pool.commit(places)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child(pool: Pool) -> Iterator[subprocess.Popen[str]]:
    """A child process whose engine has locked two slabs; it runs until the test ends."""
    words = [sys.executable, "-c", CHILD, str(pool.path), str(BLOCK)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


def test_memory_is_counted_while_a_stopped_engine_has_it_locked(
    pool: Pool, child: subprocess.Popen[str]
) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    pool.server.resize(0).result()
    assert pool.counted == 8 and pool.region.used_bytes() == 8 * BLOCK
    os.kill(child.pid, signal.SIGCONT)
    eventually(lambda: pool.counted == 0)
    assert pool.region.used_bytes() == 0


def test_an_engine_that_is_killed_has_nothing_locked(
    pool: Pool, child: subprocess.Popen[str]
) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    pool.server.resize(0).result()
    assert pool.counted == 8
    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: pool.counted == 0 and pool.region.used_bytes() == 0)


def test_an_engine_whose_processes_are_dead_has_nothing_locked(pool: Pool) -> None:
    """An engine has slabs locked and its processes are reported dead. The pool counts nothing as
    locked, although a child of it may still have its connection.
    """
    engine = Engine(pool)
    engine.store(range(8))
    slabs = engine.memory._slabs
    assert slabs is not None
    with slabs._change:
        pool.server.resize(0).result()
        assert pool.counted == 8
        pool.engines.remove(engine)
        pool.server.dead("a").result()
        assert pool.counted == 0
    engine.close()


def test_where_a_slab_cannot_be_locked_places_are_locked_alone(
    standin: StandIn, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    engine = Engine(pool)
    standin.fail(1, "cuMemHostRegister")
    engine.store(range(8))
    engine.load(range(8))
    assert registered(standin) == 1 + 16 and engine.locked == 0
    assert sum("locked singly" in record.message for record in caplog.records) == 1


def test_a_pool_that_does_not_answer_is_waited_for_once(
    standin: StandIn, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(pool)
    places = list(engine.pool.reserve(keys(range(8))).values())
    monkeypatch.setattr(engine_line, "WANT_S", 0.01)
    with monkeypatch.context() as deaf:
        deaf.setattr(pool.server._acting.lockers, "attend", lambda: time.sleep(0.001))
        engine.memory.use(places[0])
        deaf.setattr(engine_line, "WANT_S", 1e6)  # a second wait would not end
        engine.memory.use(places[4])
        assert engine.locked == 2
    for place in (places[0], places[4]):
        engine.memory.let_go(place)


@pytest.mark.parametrize("strange", [Gone(0), Want("there")])  # type: ignore[arg-type]
def test_who_speaks_otherwise_than_agreed_loses_its_line_alone(
    standin: StandIn, pool: Pool, strange: object
) -> None:
    engine, other = Engine(pool), Engine(pool, "b")
    engine.store(range(8))
    slabs = engine.memory._slabs
    assert slabs is not None
    slabs._channel.say(strange)
    eventually(lambda: engine.locked == 0)
    engine.load(range(8))
    other.load(range(8))
    assert (engine.locked, other.locked) == (0, 8)
