"""A keeper of weights without a server, for tests of the keeper and of engines."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirage.keeper.memfds import NAME
from mirage.keeper.messages import FromKeeper, KeeperReady, MastersTold
from mirage.wire import Channel


class Kept:
    """A running keeper, and the server's end of its connection."""

    def __init__(self, path: Path, idle_bytes: int, most_bytes: int) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        self.path, self.channel = path, Channel[FromKeeper](ours, FromKeeper)
        words = [sys.executable, "-m", "mirage.keeper.process", str(path), str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                [*words, str(idle_bytes), str(most_bytes)], pass_fds=[theirs.fileno()]
            )
        assert self.channel.wait()[0] == KeeperReady()

    def told(self) -> MastersTold:
        """The next message of the keeper about its masters."""
        message = self.channel.wait()[0]
        assert isinstance(message, MastersTold)
        return message

    def until(self, tenants: list[str], *, used: bool) -> MastersTold:
        """The first message by which the keeper has masters of exactly these tenants, and an engine
        uses one (`used`) or none does.
        """
        while (told := self.told()).tenants != tenants or bool(told.used_bytes) is not used:
            pass
        return told

    def close(self) -> None:
        self.channel.shut()
        self.process.wait(10)
        self.channel.close()


@contextmanager
def keeper(folder: Path, idle_bytes: int = 1 << 40, most_bytes: int = 1 << 40) -> Iterator[Kept]:
    """Run a keeper that listens in `folder` while the block runs."""
    kept = Kept(folder / "keeper.sock", idle_bytes, most_bytes)
    try:
        yield kept
    finally:
        kept.close()


def master_files(*pids: int) -> dict[int, int]:
    """Bytes of the masters that these processes have open, by inode, read from /proc."""
    found = {}
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if f"memfd:{NAME}" in str(entry.readlink()):
                    seen = entry.stat()
                    found[seen.st_ino] = seen.st_blocks * 512
            except FileNotFoundError:
                continue
    return found


def without_weights(file: Path) -> None:
    """Overwrite the numbers in a safetensors file with zeros, without a change of its size and
    times, by which it is identified.
    """
    before = file.stat()
    with file.open("r+b") as weights:
        header = 8 + int.from_bytes(weights.read(8), "little")
        weights.seek(header)
        weights.write(bytes(before.st_size - header))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
