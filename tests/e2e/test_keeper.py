"""The keeper's process, with stand-ins for engines: which master each of them gets."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mirage.keeper.client import KeeperClient, MasterRefused
from mirage.keeper.messages import (
    AskMaster,
    EndKeeper,
    FromKeeper,
    KeeperLease,
    KeeperReady,
    MasterFilled,
    MastersTold,
    NewServer,
    NoMaster,
    ToAsking,
)
from mirage.wire import Broken, Channel
from tests.keeping import Kept, keeper, master_files
from vmm.host_file import HostFile

pytestmark = pytest.mark.e2e

SIZE = 5 << 20
FILLER = """
import os, sys
from pathlib import Path
from mirage.keeper.client import KeeperClient
from vmm.host_file import HostFile
client = KeeperClient(Path(sys.argv[1]), "half", "x", 1)
HostFile.grown(client.fd, 5 << 20).tensor().fill_(7)
print("half", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with keeper(tmp_path, idle_bytes=2 * SIZE) as made:
        yield made


def fill(client: KeeperClient, byte: int) -> None:
    assert not client.whole
    file = HostFile.grown(client.fd, SIZE)
    file.tensor().fill_(byte)
    file.leave()
    client.filled()
    file.close()


def content(client: KeeperClient) -> set[int]:
    file = HostFile(client.fd)
    try:
        return set(file.tensor().unique().tolist())
    finally:
        file.close()


def test_what_one_fills_another_reads_and_nobody_writes(kept: Kept) -> None:
    first = KeeperClient(kept.path, "a", "x", SIZE)
    fill(first, 3)
    first.close()
    kept.until(["a"], used=False)
    second = KeeperClient(kept.path, "b", "x", SIZE)
    assert second.whole and content(second) == {3}
    with pytest.raises(PermissionError):
        os.pwrite(second.fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(second.fd, SIZE - 4096)
    with pytest.raises(Exception, match="mapping"):
        HostFile(second.fd, writable=True)
    assert kept.until(["a", "b"], used=True).masters == 1
    assert len(master_files(kept.process.pid)) == 1
    second.close()


def test_a_master_that_could_still_be_written_to_is_not_kept(kept: Kept) -> None:
    client = KeeperClient(kept.path, "a", "x", SIZE)
    file = HostFile.grown(client.fd, SIZE)
    with pytest.raises(MasterRefused):
        client.filled()
    file.close()
    again = KeeperClient(kept.path, "a", "x", SIZE)
    assert not again.whole


def test_who_fills_none_ends_nobody_s_filling(kept: Kept) -> None:
    """A member that waits for a master says that it has filled it. It is dismissed, and the one
    that fills the master goes on.
    """
    client = KeeperClient(kept.path, "a", "x", SIZE)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(kept.path))
        other: Channel[ToAsking] = Channel(connection, ToAsking)
        other.tell(AskMaster("b", "x", SIZE))
        other.tell(MasterFilled())
        with pytest.raises(Broken):
            other.wait()
    fill(client, 3)
    assert content(client) == {3}
    client.close()


def test_who_waits_for_one_that_is_killed_fills_it_anew(kept: Kept) -> None:
    filler = subprocess.Popen(
        [sys.executable, "-c", FILLER, str(kept.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert filler.stdout is not None and filler.stdout.readline() == "half\n"
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(KeeperClient, kept.path, "b", "x", SIZE)
        kept.until([], used=True)
        filler.send_signal(signal.SIGKILL)
        client = waiting.result(60)
    filler.communicate()
    fill(client, 5)
    assert content(client) == {5}
    assert [*master_files(kept.process.pid).values()] == [SIZE]


def test_memory_comes_back_when_too_much_is_idle(kept: Kept) -> None:
    for number, tenant in enumerate("abc"):
        client = KeeperClient(kept.path, tenant, tenant, SIZE)
        fill(client, number)
        client.close()
    told = kept.until(["b", "c"], used=False)
    assert told.idle_bytes == sum(master_files(kept.process.pid).values()) == 2 * SIZE


def test_weights_that_do_not_suit_are_refused_from_then_on(kept: Kept) -> None:
    client = KeeperClient(kept.path, "a", "x", SIZE)
    client.unfit("odd")
    with pytest.raises(MasterRefused, match="odd"):
        KeeperClient(kept.path, "a", "x", SIZE)


def test_a_mapping_outlives_the_keeper(kept: Kept, tmp_path: Path) -> None:
    client = KeeperClient(kept.path, "a", "x", SIZE)
    fill(client, 9)
    file = HostFile(client.fd)
    kept.process.kill()
    kept.process.wait()
    assert set(file.tensor().unique().tolist()) == {9}
    with pytest.raises(MasterRefused, match="does not answer"):
        KeeperClient(kept.path, "b", "x", SIZE)
    file.close()
    client.close()


def test_engines_bring_their_master_to_the_next_keeper(kept: Kept, tmp_path: Path) -> None:
    first = KeeperClient(kept.path, "a", "x", SIZE)
    fill(first, 9)
    second = KeeperClient(kept.path, "b", "x", SIZE)
    files = master_files(kept.process.pid)
    for client in (first, second):
        client.outlive()
    for _ in range(2):
        kept.process.kill()
        kept.process.wait()
        with keeper(tmp_path) as kept:
            assert kept.until(["a", "b"], used=True).masters == 1
            assert master_files(kept.process.pid) == files
            third = KeeperClient(kept.path, "c", "x", SIZE)
            assert third.whole and content(third) == {9}
            with pytest.raises(PermissionError):
                os.pwrite(third.fd, b"x", 0)
            third.close()
    with keeper(tmp_path) as kept:
        kept.until(["a", "b"], used=True)
        first.close()
        second.close()
        assert kept.until(["a", "b"], used=False).idle_bytes == sum(files.values())


def test_what_is_brought_while_another_fills_the_same_is_known_with_that(
    kept: Kept, tmp_path: Path
) -> None:
    first = KeeperClient(kept.path, "a", "x", SIZE)
    fill(first, 9)
    kept.process.kill()
    kept.process.wait()
    with keeper(tmp_path) as kept:
        filler = KeeperClient(kept.path, "b", "x", SIZE)
        first.outlive()
        kept.until([], used=True)
        fill(filler, 9)
        kept.until(["a", "b"], used=True)
        filler.close()
        first.close()
        kept.until(["a", "b"], used=False)


def test_what_is_no_master_is_not_kept_when_it_is_brought(kept: Kept, tmp_path: Path) -> None:
    there = socket.socket(socket.AF_UNIX)
    there.connect(str(kept.path))
    engine: Channel[ToAsking] = Channel(there, ToAsking)
    with (tmp_path / "file").open("w+") as file:
        engine.say(AskMaster("a", "x", SIZE), descriptors=[file.fileno()])
        assert isinstance(engine.wait()[0], NoMaster)
    again = KeeperClient(kept.path, "b", "x", SIZE)
    assert not again.whole
    engine.close()
    again.close()


def test_who_says_nonsense_is_sent_away_alone(kept: Kept) -> None:
    good = KeeperClient(kept.path, "a", "x", SIZE)
    bad = KeeperClient(kept.path, "b", "y", SIZE)
    os.write(bad.fd, b"")  # its file is its own
    bad.unfit("once")
    bad.unfit("twice")
    fill(good, 1)
    assert content(good) == {1}


def another_server(path: Path) -> Channel[FromKeeper]:
    there = socket.socket(socket.AF_UNIX)
    there.settimeout(60)
    there.connect(str(path))
    channel = Channel[FromKeeper](there, FromKeeper)
    channel.say(NewServer())
    return channel


def test_masters_outlive_their_server_for_a_lease_and_another_one_has_them(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "keeper.sock", 1 << 40, 1 << 40)
    with contextlib.closing(kept.channel):
        client = KeeperClient(kept.path, "a", "x", SIZE)
        fill(client, 3)
        kept.channel.say(KeeperLease(600.0))
        client.close()
        kept.until(["a"], used=False)
        early = another_server(kept.path)
        with pytest.raises(Broken):
            early.wait()
        early.close()
    with contextlib.closing(another_server(kept.path)) as server:
        assert server.wait()[0] == KeeperReady()
        told = server.wait()[0]
        assert isinstance(told, MastersTold) and told.tenants == ["a"]
        second = KeeperClient(kept.path, "b", "x", SIZE)
        assert second.whole and content(second) == {3}
        second.close()
        server.say(EndKeeper())
        assert kept.process.wait(60) == 0


def test_a_keeper_ends_with_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(tmp_path / "keeper.sock", 1 << 40, 1 << 40)
    kept.channel.say(KeeperLease(0.0))
    kept.channel.close()
    assert kept.process.wait(60) == 0
