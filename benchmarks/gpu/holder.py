"""A process that holds pages of the device, or none, as it is told: ``python -m ... --help``."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from select import select

from benchmarks.gpu.bench import Bench, dry
from vmm.cuda import CudaDriver
from vmm.driver import Page

ROOT = Path(__file__).parents[2]
LIMIT_S = 60
AT_ONCE = 64
"""File descriptors in one message; the kernel takes 253."""


class Holder:
    """The process, seen from the one that tells it.

    Words: "take" (create all pages), "give" (release them), "loop" (both, for ever), and with a
    socket "send" (export them to its other end, and release them) and "receive".
    """

    def __init__(self, bench: Bench, pages: int, peer: socket.socket | None = None) -> None:
        words = [sys.executable, "-m", "benchmarks.gpu.holder", str(bench.page_bytes), str(pages)]
        words += ["--dry", bench.device] if bench.dry else []
        words += ["--peer", str(peer.fileno())] if peer else []
        self._process = subprocess.Popen(
            words,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[peer.fileno()] if peer else [],
        )

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def ask(self, word: str) -> None:
        """Tell, and wait until it is done. Raises `RuntimeError` if it cannot."""
        self.tell(word)
        assert self._process.stdout is not None
        ready, _, _ = select([self._process.stdout], [], [], LIMIT_S)
        if not ready:
            raise RuntimeError(f"a process did not {word} within {LIMIT_S} s")
        if self._process.stdout.readline().strip() != "done":
            raise RuntimeError(f"a process failed when it was told to {word}")

    def kill(self) -> None:
        with self._process:
            self._process.kill()


@contextmanager
def pair(bench: Bench, pages: int, *, linked: bool = False) -> Iterator[list[Holder]]:
    """Two processes that have started and hold nothing; `linked` ones can send pages."""
    with ExitStack() as stack:
        ends: list[socket.socket | None] = [None, None]
        if linked:
            ends = [stack.enter_context(end) for end in socket.socketpair()]
        holders = []
        for end in ends:
            holders.append(Holder(bench, pages, end))
            stack.callback(holders[-1].kill)
        for holder in holders:
            holder.ask("give")
        yield holders


class _Held:
    """The pages, seen from the process that holds them."""

    def __init__(self, driver: CudaDriver, count: int, peer: socket.socket | None) -> None:
        self._driver, self._count, self._peer = driver, count, peer
        self._pages: list[Page] = []

    def words(self) -> dict[str, Callable[[], None]]:
        return {name: getattr(self, name) for name in ("give", "take", "loop", "send", "receive")}

    def give(self) -> None:
        self._driver.release(self._pages)
        self._pages = []

    def take(self) -> None:
        self._pages = self._driver.create(self._count)

    def loop(self) -> None:
        while True:
            self.give()
            self.take()

    def send(self) -> None:
        assert self._peer is not None
        for start in range(0, self._count, AT_ONCE):
            fds = [self._driver.export_page(p) for p in self._pages[start : start + AT_ONCE]]
            socket.send_fds(self._peer, [b"x"], fds)
            for fd in fds:
                os.close(fd)
        self.give()

    def receive(self) -> None:
        assert self._peer is not None
        while len(self._pages) < self._count:
            _, fds, _, _ = socket.recv_fds(self._peer, 1, AT_ONCE)
            if not fds:
                raise RuntimeError("the other process has gone")
            for fd in fds:
                self._pages.append(self._driver.import_page(fd))
                os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page_bytes", type=int)
    parser.add_argument("pages", type=int)
    parser.add_argument("--dry", metavar="DEVICE", help="the stand-in's shared device")
    parser.add_argument("--peer", type=int, metavar="FD", help="socket to the other process")
    options = parser.parse_args()
    opened = dry(device=options.dry).open if options.dry else CudaDriver
    driver = opened(options.page_bytes, shareable=options.peer is not None)
    peer = None if options.peer is None else socket.socket(fileno=options.peer)
    words = _Held(driver, options.pages, peer).words()
    for line in sys.stdin:
        words[line.strip()]()
        print("done", flush=True)


if __name__ == "__main__":
    main()
