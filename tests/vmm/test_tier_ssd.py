"""KV blocks on a real disk: a block that is read is right, whatever happened to the file."""

from __future__ import annotations

import errno
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mirage.tiers.blocks import Name
from mirage.tiers.contract import Key, Lookup, Medium, Member
from mirage.tiers.core import Core
from mirage.tiers.holes import ByteRange
from mirage.tiers.local import LocalPool
from mirage.tiers.region import Region
from mirage.tiers.space import PAGE
from mirage.tiers.ssd import store as acting
from mirage.tiers.ssd.record import header, named
from mirage.tiers.ssd.store import FolderRefused, SsdStore

pytestmark = pytest.mark.vmm

NBYTES = 3 * PAGE + 512
PLACE = 4 * PAGE
STRIDE = PAGE + PLACE
PLACES = 16
BLOCK = 65536


def name(number: int, fingerprint: bytes = b"weights") -> Name:
    return Name(fingerprint, Key(b"%d" % number))


def content(number: int, nbytes: int = NBYTES) -> bytes:
    return random.Random(number).randbytes(nbytes)


class Bench:
    """A store on disk, the memory region of the pool above it, and the messages of the store."""

    def __init__(
        self,
        folder: Path,
        blocks: int = 8,
        *,
        keep: bool = False,
        tenants: set[str] | None = None,
    ) -> None:
        self.region = Region.create(PLACES * PLACE)
        self.said: list[tuple[str, Name, bool]] = []
        self.store = SsdStore(folder, blocks * STRIDE, keep=keep, tenants=tenants)
        try:
            self.store.begin(self, self.region.memory)
        except OSError:
            self.region.close()
            raise

    def sunk(self, name: Name, *, whole: bool) -> None:
        self.said.append(("sunk", name, whole))

    def risen(self, name: Name, *, whole: bool) -> None:
        self.said.append(("risen", name, whole))

    def put(
        self, number: int, place: int = 0, fingerprint: bytes = b"weights", tenant: str = "a"
    ) -> bool:
        where = ByteRange(place * PLACE, NBYTES)
        self.region.memory[where.offset : where.offset + NBYTES] = content(number)
        return self.store.sink(name(number, fingerprint), where, tenant) and self._answer("sunk")

    def get(self, number: int, fingerprint: bytes = b"weights") -> bytes | None:
        where = ByteRange((PLACES - 1) * PLACE, NBYTES)
        asked = name(number, fingerprint)
        if not self.store.has(asked, NBYTES) or not self.store.rise(asked, where):
            return None
        if not self._answer("risen"):
            return None
        return bytes(self.region.memory[where.offset : where.offset + NBYTES])

    def _answer(self, what: str) -> bool:
        deadline = time.monotonic() + 30
        while not self.said:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        said, _, whole = self.said.pop()
        assert said == what
        return whole

    def close(self) -> None:
        self.store.end()
        self.region.close()


def blocks_file(folder: Path) -> Path:
    (found,) = folder.glob("kv-*.blocks")
    return found


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_what_goes_down_comes_back_and_the_oldest_goes(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "ssd")
    for number in range(12):
        assert bench.put(number)
    assert [number for number in range(12) if bench.get(number) == content(number)] == [
        *range(4, 12)
    ]
    state = bench.store.state()
    assert (state["held_bytes"], state["evictions"]) == (8 * STRIDE, 4)
    (handle,) = bench.store._disk._open.values()
    assert os.fstat(handle).st_size == 8 * STRIDE
    bench.close()
    assert [path.name for path in (tmp_path / "ssd").iterdir()] == ["mirage.lock"]


def test_blocks_outlive_a_restart_only_if_told_to(tmp_path: Path) -> None:
    for keep in (True, False):
        folder = tmp_path / str(keep)
        for run in range(2):
            bench = Bench(folder, keep=keep)
            found = bench.get(3) == content(3)
            assert found == (keep and run == 1)
            assert bench.put(3) != found
            bench.close()


@pytest.mark.parametrize("at", [0, 9, 38, PAGE, PAGE + NBYTES - 1])
def test_a_flipped_bit_is_never_served(tmp_path: Path, at: int) -> None:
    bench = Bench(tmp_path, keep=True)
    assert bench.put(1)
    flip(blocks_file(tmp_path), at)
    assert bench.get(1) is None
    assert bench.store.state()["unbelieved"] == 1
    assert bench.put(1) and bench.get(1) == content(1)
    bench.close()


def test_without_the_checksum_a_flipped_bit_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "believed", lambda page, name, block: True)
    bench = Bench(tmp_path, keep=True)
    assert bench.put(1)
    flip(blocks_file(tmp_path), PAGE + 7)
    served = bench.get(1)
    assert served is not None and served != content(1)
    bench.close()


def test_other_weights_find_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep=True)
    assert bench.put(1)
    assert bench.get(1, b"other weights") is None
    bench.close()
    # as if another block had been written into the cell by somebody else
    with blocks_file(tmp_path).open("r+b") as file:
        file.write(header(name(1, b"other weights"), memoryview(content(1)), "a"))
    bench = Bench(tmp_path, keep=True)
    assert bench.get(1) is None
    assert bench.get(1, b"other weights") == content(1)
    bench.close()


def test_a_shorter_file_loses_what_it_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep=True)
    assert all(bench.put(number) for number in range(4))
    os.truncate(blocks_file(tmp_path), 2 * STRIDE + PAGE)
    assert [bench.get(number) == content(number) for number in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    bench.close()


def test_one_process_owns_a_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "kv-x.blocks").write_text("mine")
    bench = Bench(tmp_path)
    with pytest.raises(FolderRefused, match="another process has it"):
        Bench(tmp_path)
    with pytest.raises(FolderRefused, match=r"notes\.txt: File exists"):
        Bench(tmp_path / "notes.txt")
    bench.close()
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "kv-x.blocks", "mirage.lock"}


def test_a_disk_that_took_a_part_of_a_block_is_said_to_be_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk writes only a part of a block, as file systems do when their last page is taken. The
    store logs that it is full, and does not have the block.
    """
    bench, whole = Bench(tmp_path), os.pwritev
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", lambda handle, parts, at: whole(handle, parts[:1], at))
        assert not bench.put(1)
    assert "No space left on device" in caplog.text
    assert bench.get(1) is None
    bench.close()


def test_a_disk_that_fails_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench(tmp_path)
    assert bench.put(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (STRIDE, hard))
    try:
        assert not bench.put(1)
        assert not bench.put(2)
        assert bench.get(0) is None  # not asked while it rests
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert len(caplog.records) == 1 and "no KV blocks are written" in caplog.text
    monkeypatch.setattr(acting, "RETRY_S", 0.0)
    assert bench.get(0) == content(0)
    assert bench.put(3) and bench.get(3) == content(3)
    bench.close()


def test_after_a_failure_one_block_is_tried_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, whole, full, gate = Bench(tmp_path, blocks=16), os.pwritev, [True], threading.Event()
    tried = []

    def write(handle: int, parts: list[memoryview], at: int) -> int:
        tried.append(at)
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        assert gate.wait(30)
        return whole(handle, parts, at)

    monkeypatch.setattr(os, "pwritev", write)
    monkeypatch.setattr(acting, "RETRY_S", 0.3)
    assert not bench.put(0)
    for fails in (True, False):
        time.sleep(0.4)
        tried.clear()
        full[:] = [True] if fails else []
        gate.clear()
        taken = [bench.store.sink(name(n), ByteRange(n * PLACE, NBYTES), "a") for n in range(8)]
        gate.set()
        assert sum(taken) == 1 and bench._answer("sunk") is not fails
        assert len(tried) == 1
    assert all(bench.put(number) for number in range(8, 12))
    bench.close()


def test_blocks_of_a_tenant_that_is_removed_are_gone_from_the_disk(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep=True)
    assert all(bench.put(number, tenant="ab"[number % 2]) for number in range(6))
    bench.store.wipe("a")
    assert [bench.get(number) is None for number in range(6)] == [True, False] * 3
    bench.close()
    data = blocks_file(tmp_path).read_bytes()
    assert [content(number) in data for number in range(6)] == [False, True] * 3
    bench = Bench(tmp_path, keep=True)
    assert bench.store.state()["found"] == 3 and bench.put(0)
    bench.close()


def test_blocks_of_tenants_that_are_there_no_more_are_erased_at_the_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep=True)
    assert all(bench.put(number, tenant="ab"[number % 2]) for number in range(4))
    bench.close()
    bench = Bench(tmp_path, keep=True, tenants={"b"})
    assert [bench.get(number) is None for number in range(4)] == [True, False] * 2
    bench.close()
    data = blocks_file(tmp_path).read_bytes()
    assert [content(number) in data for number in range(4)] == [False, True] * 2


WRITER = """
import sys
from pathlib import Path
from tests.vmm.test_tier_ssd import Bench
bench = Bench(Path(sys.argv[1]), keep=sys.argv[3] == "kept")
number = int(sys.argv[2])
while True:
    bench.put(number % 50)
    number += 1
    if number == int(sys.argv[2]) + 1:
        print("on", flush=True)
"""


def killed(folder: Path, first: int, kept: str, *, after_s: float) -> None:
    """Start a process that writes blocks, and kill it `after_s` after its first one."""
    words = [sys.executable, "-c", WRITER, str(folder), str(first), kept]
    writer = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert writer.stdout is not None and writer.stdout.readline()
    time.sleep(after_s)
    writer.kill()
    writer.wait()
    writer.stdout.close()


@pytest.mark.parametrize(("kept", "files"), [("kept", 1), ("not kept", 0)])
def test_nothing_is_left_of_a_killed_writer_that_is_not_to_be_kept(
    tmp_path: Path, kept: str, files: int
) -> None:
    killed(tmp_path, 0, kept, after_s=0.3)
    assert len([*tmp_path.glob("kv-*.blocks")]) == files


@pytest.mark.parametrize("kills", [3, pytest.param(25, marks=pytest.mark.slow)])
def test_a_writer_killed_at_any_moment_leaves_nothing_wrong(tmp_path: Path, kills: int) -> None:
    chance, right = random.Random(kills), 0
    for kill in range(kills):
        killed(tmp_path, kill * 17, "kept", after_s=chance.random() * 0.2)
        bench = Bench(tmp_path, keep=True)
        for number in range(50):
            found = bench.get(number)
            assert found in (None, content(number))
            right += found is not None
        bench.close()
    assert right >= kills


def test_a_page_of_anything_is_no_header() -> None:
    chance = random.Random(1)
    whole = header(name(1), memoryview(content(1)), "a")
    assert named(whole) == (name(1), NBYTES, "a")
    for _ in range(2000):
        page = bytearray(whole)
        page[chance.randrange(60)] ^= 1 << chance.randrange(8)
        assert named(page) in (None, (name(1), NBYTES, "a"))
    assert named(bytes(PAGE)) is None and named(chance.randbytes(PAGE)) is None
    with pytest.raises(ValueError, match="too long"):
        header(Name(b"x" * PAGE, Key(b"")), memoryview(b""), "a")


def test_the_host_pool_finds_again_what_it_evicted_to_the_disk(tmp_path: Path) -> None:
    for run in range(2):
        store = SsdStore(tmp_path, 64 * (BLOCK + PAGE), keep=True)
        pool = LocalPool(Core(4 * BLOCK, below=store), member())
        if not run:
            for number in range(24):
                stored(pool, number)
                wait(partial(idle, store))
                pool.found("nobody", Key(b""))
        came = [number for number in range(24) if reads(pool, store, number)]
        assert len(came) >= 20 - 4 * run  # the last ones have not been next to go
        assert not run or store.state()["found"] == len(came)
        pool.close()


def idle(store: SsdStore) -> bool:
    return not store.state()["writing"]


def wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def stored(pool: LocalPool, number: int) -> None:
    for place in pool.reserve([Key(b"%d" % number)]).values():
        pool.memory(Medium.HOST)[place.offset : place.offset + BLOCK] = content(number, BLOCK)
    pool.commit([Key(b"%d" % number)])


def reads(pool: LocalPool, store: SsdStore, number: int) -> bool:
    """True if a block is found, at once or after it came up from the disk; its content must be
    right.
    """
    key, request = Key(b"%d" % number), f"r{number}"
    pool.seek(request, [key])
    wait(lambda: pool.found(request, key) is not Lookup.RISING)
    ready = pool.found(request, key) is Lookup.READY
    if ready:
        (place,) = pool.places(request, [key])
        there = pool.memory(Medium.HOST)[place.offset : place.offset + BLOCK]
        assert bytes(there) == content(number, BLOCK)
    pool.leave(request)
    return ready


def member() -> Member:
    return Member("a", b"weights", BLOCK)
