"""The host pool between processes: shared, killed at bad moments, sent bad messages."""

from __future__ import annotations

import ast
import errno
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from mirage.tiers.below import Above
from mirage.tiers.blocks import Name
from mirage.tiers.client import PoolClient
from mirage.tiers.contract import Key, Lookup, Medium, Member
from mirage.tiers.core import Core
from mirage.tiers.holes import ByteRange
from mirage.tiers.ledger import Due, PriorityClass
from mirage.tiers.messages import VERSION, Join, Leave, Seek
from mirage.tiers.server import PoolServer
from mirage.tiers.ssd import store
from mirage.tiers.ssd.record import cell_bytes
from mirage.tiers.ssd.store import SsdStore
from mirage.wire import HEADER, LONGEST, encode

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
BLOCK = 65536
BUDGET = 32 * BLOCK
PATIENCE_S = 20.0


class Process:
    """A child process that runs `tier_member.py`, so acts as an engine at the pool."""

    def __init__(self, path: Path, tenant: str = "a", more: Sequence[str] = ()) -> None:
        words = [sys.executable, "-m", "tests.e2e.tier_member", str(path), tenant, str(BLOCK)]
        words += more
        self.tenant = tenant
        self.popen = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == "ready\n"

    def post(self, words: str) -> None:
        """Send a command, and do not wait for its answer."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{words}\n")
        self.popen.stdin.flush()

    def __call__(self, words: str) -> Any:
        assert self.popen.stdout is not None
        self.post(words)
        return ast.literal_eval(self.popen.stdout.readline())

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.popen.stdin.close()
        self.popen.stdout.close()
        self.popen.wait(PATIENCE_S)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PoolServer]:
    made = PoolServer(tmp_path / "tiers.sock", Core(BUDGET), dict.fromkeys("abc", Due()))
    made.start()
    yield made
    made.stop()
    made.stop()
    assert not (tmp_path / "tiers.sock").exists()


@pytest.fixture
def start(tmp_path: Path, server: PoolServer) -> Iterator[Any]:
    begun: list[Process] = []

    def start(tenant: str = "a") -> Process:
        begun.append(Process(tmp_path / "tiers.sock", tenant))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()


def eventually(what: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.01)


def client(path: Path, tenant: str = "c", answer_s: float = 5.0) -> PoolClient:
    return PoolClient(path, Member(tenant, b"weights", BLOCK), answer_s)


def test_processes_share_what_they_store(start: Any, server: PoolServer) -> None:
    a, b = start("a"), start("b")
    assert a("store(1, 2, 3)") == [1, 2, 3]
    assert b("reads(1, 2, 3, 4)") == {1: "ready", 2: "ready", 3: "ready", 4: "absent"}
    assert b("store(3, 4)") == [4]
    assert a("reads(4)") == {4: "ready"}
    assert a("pool.close()") is None
    assert b("reads(1)") == {1: "ready"}
    eventually(lambda: server.state().tenants["b"].counts.hits == 4)
    counts = server.state().tenants["b"].counts
    assert (counts.misses, counts.stored_bytes) == (1, BLOCK)
    eventually(lambda: server.state().tenants["b"].counts.loaded_bytes == 4 * BLOCK)


def test_it_listens_again_where_its_socket_was_removed(
    start: Any, server: PoolServer, tmp_path: Path
) -> None:
    a = start("a")
    assert a("store(1)") == [1]
    (tmp_path / "tiers.sock").unlink()
    server.listen().result(PATIENCE_S)
    assert start("b")("reads(1)") == {1: "ready"}
    assert a("store(2)") == [2], "who was there stays"


def test_where_it_cannot_listen_it_says_so_and_goes_on(
    start: Any, server: PoolServer, tmp_path: Path
) -> None:
    a = start("a")
    with pytest.raises(ValueError, match=r"no socket at .*tiers.sock: .*in use"):
        server.listen().result(PATIENCE_S)
    assert a("store(1)") == [1]
    assert start("b")("reads(1)") == {1: "ready"}


def test_what_a_killed_engine_had_not_committed_is_never_served(
    start: Any, server: PoolServer
) -> None:
    a, b = start("a"), start("b")
    assert a("store(1)") == [1]
    assert a("half(2, 3)") == [2, 3]
    a.kill()
    eventually(lambda: b("reads(2)") == {2: "absent"})
    assert b("reads(1, 2, 3)") == {1: "ready", 2: "absent", 3: "absent"}
    assert b("store(2, 3)") == [2, 3]
    assert b("reads(2, 3)") == {2: "ready", 3: "ready"}
    held = server.state
    eventually(lambda: held().tenants["a"].reserved_bytes == 2 * BLOCK)
    server.dead("a").result()
    eventually(lambda: held().tenants["a"].reserved_bytes == 0)
    assert b("reads(1, 2, 3)") == {1: "ready", 2: "ready", 3: "ready"}


def test_pins_of_a_killed_engine_last_until_it_is_said_to_be_dead(
    start: Any, server: PoolServer
) -> None:
    a, b = start("a"), start("b")
    a("store(*range(32))")
    assert set(a("hold('r', *range(32))").values()) == {"ready"}
    a.kill()
    assert b("store(100)") == []
    server.dead("a").result()
    assert b("store(100)") == [100]


@pytest.mark.parametrize("seed", range(3))
def test_engines_killed_at_random_moments(start: Any, server: PoolServer, seed: int) -> None:
    """Two processes store and read random blocks and are killed at random moments. Each block that
    is found is right, and the pool stays within its budget.
    """
    chance = random.Random(seed)
    processes = {name: start(name) for name in ("a", "b")}
    for _ in range(4):
        for process in processes.values():
            for _ in range(chance.randrange(1, 8)):
                first = chance.randrange(60)
                process.post(f"{chance.choice(['store', 'half', 'reads'])}({first}, {first + 1})")
        time.sleep(chance.random() / 50)
        victim = chance.choice(sorted(processes))
        processes[victim].kill()
        server.dead(victim).result()
        processes[victim] = start(victim)
        found = processes[victim]("reads(*range(61))")
        assert set(found.values()) <= {"ready", "absent", "coming"}
    eventually(lambda: server.state().used_bytes <= BUDGET)


def test_a_killed_server_leaves_engines_as_if_nothing_were_stored(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tiers.sock"
    words = (
        "import sys, time; from pathlib import Path; from mirage.tiers.core import Core;"
        "from mirage.tiers.ledger import Due; from mirage.tiers.server import PoolServer;"
        f"s = PoolServer(Path({str(path)!r}), Core({BUDGET}), dict(a=Due())); s.start();"
        "print('ready', flush=True); time.sleep(1000)"
    )
    server = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    a = Process(path)
    assert a("store(1)") == [1]
    assert a("hold('r', 1, 2)") == {1: "ready", 2: "absent"}
    server.send_signal(signal.SIGKILL)
    server.wait()
    server.stdout.close()
    assert a("reads(1, 2)") == {1: "absent", 2: "absent"}
    assert a("store(3)") == []
    assert a("(pool.leave('r'), pool.abandon(keys(1)), pool.close(), pool.close())")
    a.end()


def test_without_a_server_nothing_is_found(tmp_path: Path) -> None:
    with closing(client(tmp_path / "nobody.sock")) as pool:
        pool.seek("r", [Key(b"1")])
        assert pool.found("r", Key(b"1")) is Lookup.ABSENT
        assert pool.reserve([Key(b"1")]) == {}
        with pytest.raises(KeyError):
            pool.places("r", [Key(b"1")])
        with pytest.raises(KeyError):
            pool.memory(Medium.HOST)


def joined(path: Path, tenant: str = "a", version: int = VERSION) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(path))
    made.sendall(encode(Join(version, tenant, b"weights", BLOCK)))
    made.settimeout(PATIENCE_S)
    return made


def ended(there: socket.socket) -> bytes:
    """All bytes that come until the server closes the connection."""
    text = b""
    try:
        while data := there.recv(65536):
            text += data
    except ConnectionResetError:
        pass
    return text


def test_a_place_is_told_once_all_that_was_decided_before_is_done(
    tmp_path: Path, server: PoolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place in the pool is given to an engine only after earlier decisions were carried out.
    Otherwise the pool could punch a hole into bytes that the engine has written there already.
    """
    done = threading.Event()
    carry_out = server._acting.carry_out

    def slowly() -> Any:
        time.sleep(0.2)
        told = carry_out()
        done.set()
        return told

    with closing(client(tmp_path / "tiers.sock")) as pool:
        server.stand("c", PriorityClass.RECENT).result()  # all that joining brought is done
        monkeypatch.setattr(server._acting, "carry_out", slowly)
        assert pool.reserve([Key(b"1")])
        assert done.is_set()


@pytest.mark.parametrize(
    "words",
    [
        HEADER.pack(5, 0) + b"hello",
        HEADER.pack(LONGEST + 1, 0),
        HEADER.pack(1, 1) + b"\xc0",
        encode(Join(VERSION, "a", b"w", BLOCK)),
        HEADER.pack(3, 0) + b"\x92\xa4Se",
        encode(Seek(1, [b"%d" % number for number in range(2000)])),
    ],
    ids=["nonsense", "too long", "descriptors", "joins twice", "torn", "too many keys"],
)
def test_who_breaks_the_protocol_is_sent_away_alone(
    start: Any, tmp_path: Path, server: PoolServer, words: bytes
) -> None:
    good = start("b")
    with closing(joined(tmp_path / "tiers.sock")) as bad:
        assert bad.recv(4)
        bad.sendall(words)
        ended(bad)
    assert good("store(1)") == [1]


@pytest.mark.parametrize(
    ("tenant", "version", "why"),
    [("nobody", VERSION, b"no tenant is named 'nobody'"), ("a", 99, b"protocol version 99")],
)
def test_who_may_not_join_hears_why(
    tmp_path: Path, server: PoolServer, tenant: str, version: int, why: bytes
) -> None:
    with closing(joined(tmp_path / "tiers.sock", tenant, version)) as bad:
        assert why in ended(bad)


def test_who_does_not_read_blocks_nobody(start: Any, tmp_path: Path, server: PoolServer) -> None:
    good = start("b")
    with closing(joined(tmp_path / "tiers.sock")) as bad:
        bad.settimeout(PATIENCE_S)
        keys = [b"%d" % number for number in range(1000)]
        try:
            for request in range(2000):
                bad.sendall(encode(Seek(request, keys)) + encode(Leave(request, 0)))
        except (TimeoutError, ConnectionError):
            pass
        assert good("store(1)") == [1]
        assert good("reads(1)") == {1: "ready"}
        eventually(lambda: len(server._guests) == 1)


def test_a_late_answer_is_not_waited_for_and_its_places_come_back(
    tmp_path: Path, server: PoolServer
) -> None:
    with closing(client(tmp_path / "tiers.sock", answer_s=0.0)) as hurried:
        given = hurried.reserve([Key(b"%d" % number) for number in range(32)])
        assert given == {}
        eventually(lambda: server.state().tenants["c"].held_bytes == 0 and _answered(hurried))
        with closing(client(tmp_path / "tiers.sock", "b")) as patient:
            assert len(patient.reserve([Key(b"%d" % number) for number in range(32)])) == 32


def _answered(pool: PoolClient) -> bool:
    pool.found("r", Key(b"1"))
    pool.seek("r", [Key(b"1")])
    pool.found("r", Key(b"1"))
    return pool._answered == pool._asked


def test_memory_goes_when_the_budget_shrinks(start: Any, server: PoolServer) -> None:
    a = start("a")
    a("store(*range(32))")
    a("hold('r', 1, 2)")
    region = server._acting.regions.host
    assert region.used_bytes() == BUDGET
    server.resize(8 * BLOCK).result()
    assert region.used_bytes() <= 8 * BLOCK
    assert a("reads(1, 2)") == {1: "ready", 2: "ready"}
    with pytest.raises(ValueError, match="the pool was made for"):
        server.resize(2**40).result()
    server.stand("a", PriorityClass.EVICTABLE).result()
    eventually(lambda: server.state().tenants["a"].standing == "evictable")
    state = server.state()
    assert 0 < state.tenants["a"].held_bytes <= state.used_bytes <= state.budget_bytes == 8 * BLOCK
    assert state.tenants["a"].share_bytes == 0


class Shelf:
    """Stand-in for a tier below the pool, with a thread of its own. Every third copy from it to the
    pool fails half-way.
    """

    def __init__(self) -> None:
        self.held: dict[Name, bytes] = {}
        self.tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self.work)
        self.rises = 0

    def begin(self, above: Above, memory: memoryview) -> None:
        self.above, self.memory = above, memory
        self.thread.start()

    def work(self) -> None:
        while (task := self.tasks.get()) is not None:
            task()

    def has(self, name: Name, nbytes: int) -> bool:
        return name in self.held

    def sink(self, name: Name, place: ByteRange, tenant: str) -> bool:
        self.tasks.put(partial(self.down, name, place))
        return True

    def rise(self, name: Name, place: ByteRange) -> bool:
        self.tasks.put(partial(self.up, name, place))
        return True

    def down(self, name: Name, place: ByteRange) -> None:
        self.held[name] = bytes(self.memory[place.offset : place.offset + place.nbytes])
        self.above.sunk(name, whole=True)

    def up(self, name: Name, place: ByteRange) -> None:
        self.rises += 1
        whole = bool(self.rises % 3)
        text = self.held[name][: place.nbytes if whole else place.nbytes // 2]
        self.memory[place.offset : place.offset + len(text)] = text
        self.above.risen(name, whole=whole)

    def end(self) -> None:
        self.tasks.put(None)
        self.thread.join()
        self.memory = memoryview(b"")


def test_a_tier_below_takes_what_goes_and_brings_it_back(tmp_path: Path) -> None:
    shelf = Shelf()
    server = PoolServer(tmp_path / "tiers.sock", Core(BUDGET, below=shelf), {"c": Due()})
    server.start()
    with closing(client(tmp_path / "tiers.sock")) as pool:
        memory = pool.memory(Medium.HOST)
        for number in range(100):
            key = Key(b"%d" % number)
            (place,) = pool.reserve([key]).values()  # what was committed before is decided now
            while not shelf.tasks.empty():
                time.sleep(0.001)
            memory[place.offset : place.offset + 3] = b"%03d" % number
            pool.commit([key])
        ready = absent = 0
        for number in range(100):
            key, request = Key(b"%d" % number), f"r{number}"
            pool.seek(request, [key])
            states = set()
            while not states & {Lookup.READY, Lookup.ABSENT}:
                states.add(pool.found(request, key))
            absent += Lookup.ABSENT in states
            if Lookup.READY in states:
                ready += 1
                (place,) = pool.places(request, [key])
                assert bytes(memory[place.offset : place.offset + 3]) == b"%03d" % number
            pool.leave(request)
        assert ready > 32
        assert ready + absent == 100
        assert shelf.rises >= 3
        memory = memoryview(b"")
    server.stop()
    assert not shelf.thread.is_alive()


@pytest.mark.parametrize("seconds", [PATIENCE_S, 0.0])
def test_what_host_memory_has_alone_is_written_before_the_end(
    tmp_path: Path, seconds: float
) -> None:
    def serve() -> PoolServer:
        disk = SsdStore(tmp_path / "ssd", 4 * BUDGET, keep=True)
        made = PoolServer(tmp_path / "tiers.sock", Core(BUDGET, below=disk), {"c": Due()})
        made.start()
        return made

    stored = [Key(b"%d" % number) for number in range(12)]
    server = serve()
    with closing(client(tmp_path / "tiers.sock")) as pool:
        memory = pool.memory(Medium.HOST)
        for number, place in enumerate(pool.reserve(stored).values()):
            memory[place.offset : place.offset + BLOCK] = bytes([number + 1]) * BLOCK
        pool.commit(stored)
        memory = memoryview(b"")
    eventually(lambda: server.state().blocks == len(stored))
    left = server.save(seconds, 4 * BUDGET)
    assert left == (0 if seconds else len(stored))
    server.stop()
    server = serve()
    with closing(client(tmp_path / "tiers.sock")) as pool:
        pool.seek("r", stored)
        settled = {Lookup.READY, Lookup.ABSENT}
        eventually(lambda: {pool.found("r", key) for key in stored} <= settled)
        states = {pool.found("r", key) for key in stored}
        assert states == ({Lookup.READY} if seconds else {Lookup.ABSENT})
        memory = pool.memory(Medium.HOST)
        places = pool.places("r", stored) if seconds else []
        for key, place in zip(stored, places, strict=bool(seconds)):
            assert memory[place.offset : place.offset + BLOCK] == bytes([int(key) + 1]) * BLOCK
        memory = memoryview(b"")
    server.stop()


@contextmanager
def saving(folder: Path, blocks: int, disk_blocks: int) -> Iterator[PoolServer]:
    """Run a pool with a kept disk while the block runs. Its host memory has `blocks` blocks,
    numbered in the order of their use.
    """
    disk = SsdStore(folder / "ssd", disk_blocks * cell_bytes(BLOCK), keep=True)
    server = PoolServer(folder / "tiers.sock", Core(BUDGET, below=disk), {"c": Due()})
    server.start()
    with closing(client(folder / "tiers.sock")) as pool:
        stored = [Key(b"%d" % number) for number in range(blocks)]
        pool.reserve(stored)
        pool.commit(stored)
    eventually(lambda: server.state().blocks == blocks)
    try:
        yield server
    finally:
        server.stop()


def kept(folder: Path) -> set[int]:
    """Numbers of the blocks that a new start finds on the disk."""
    disk = SsdStore(folder / "ssd", 4 * BUDGET, keep=True)
    disk.begin(Mute(), memoryview(b""))
    names = {int(name.key) for name in disk._index._entries}
    disk.end()
    return names


class Mute:
    """Stand-in for the receiver of ended copies, which is never called."""

    def sunk(self, name: Name, *, whole: bool) -> None: ...

    def risen(self, name: Name, *, whole: bool) -> None: ...


def test_what_lies_on_the_disk_already_is_not_driven_out_by_what_was_used_before_it(
    tmp_path: Path,
) -> None:
    with saving(tmp_path, 12, disk_blocks=8) as server:
        server._order(partial(server._core.save, [Name(b"weights", Key(b"0"))])).result()
        eventually(lambda: not server._asked(lambda: server._core.sinking))
        with closing(client(tmp_path / "tiers.sock")) as pool:
            pool.seek("r", [Key(b"0")])
            eventually(lambda: pool.found("r", Key(b"0")) is Lookup.READY)
        eventually(lambda: not server._asked(lambda: server._core.ledger.account("c").pinned))
        assert server.save(10.0, 8 * cell_bytes(BLOCK)) == 0
    assert kept(tmp_path) == {0, *range(5, 12)}


@pytest.mark.parametrize("heals", [True, False])
def test_blocks_that_a_disk_did_not_take_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heals: bool
) -> None:
    write, failed, healthy = os.pwritev, threading.Event(), threading.Event()

    def pwritev(*what: Any) -> int:
        if healthy.is_set():
            return write(*what)
        failed.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(store, "RETRY_S", 0.0 if heals else 60.0)
    with saving(tmp_path, 12, disk_blocks=32) as server:
        server._order(partial(server._core.save, [Name(b"weights", Key(b"0"))])).result()
        eventually(lambda: failed.is_set() and not server._asked(lambda: server._core.sinking))
        if heals:
            healthy.set()
        assert server.save(10.0, 32 * cell_bytes(BLOCK)) == (0 if heals else 12)
    assert kept(tmp_path) == (set(range(12)) if heals else set())


def test_nothing_is_left(tmp_path: Path) -> None:
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        server = PoolServer(tmp_path / "tiers.sock", Core(BUDGET), {"c": Due()})
        server.start()
        pool = client(tmp_path / "tiers.sock")
        pool.reserve([Key(b"1")])
        pool.close()
        server.stop()
    assert not list(tmp_path.iterdir())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
