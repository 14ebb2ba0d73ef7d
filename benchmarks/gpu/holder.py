"""Process that holds pages of the device, or none, by commands: ``python -m ... --help``."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from select import select

from benchmarks.gpu.bench import Bench, dry
from benchmarks.gpu.tied import tied
from vmm.cuda import CudaDriver
from vmm.driver import Page
from vmm.host import host_buffer

ROOT = Path(__file__).parents[2]
LIMIT_S = 60
MARK, SAMPLE = 0x5A, 4096
"""Byte that is written into all pages, and the number of bytes of each that are looked at."""
WORDS = ("take", "give", "send", "receive", "write", "check")
AT_ONCE = 64
"""File descriptors in one message; the kernel takes 253."""


class Holder:
    """The process that holds pages, seen from the process that commands it.

    Words: "take" (create all pages and map them) and "give" (unmap and release them); with a link
    "send" (unmap pages and export them over it) and "receive" (import pages from it, and map them);
    "write" the byte `MARK` into all of them, and "check" that each has it (otherwise end).
    """

    def __init__(self, bench: Bench, pages: int, link: socket.socket | None = None) -> None:
        words = [sys.executable, "-m", "benchmarks.gpu.holder", str(bench.page_bytes), str(pages)]
        words += ["--dry", bench.device] if bench.dry else []
        inherited = () if link is None else (link.fileno(),)
        words += [f"--link={fd}" for fd in inherited]
        self._process = subprocess.Popen(
            tied(words),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=inherited,
        )

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def ask(self, word: str) -> None:
        """Send a word and wait until it is done. Raises `RuntimeError` if it is not done in time,
        or if the process has ended.
        """
        try:
            self.tell(word)
        except BrokenPipeError:
            self._process.wait(LIMIT_S)
            raise RuntimeError(f"a process has gone that was told to {word}") from None
        assert self._process.stdout is not None
        ready, _, _ = select([self._process.stdout], [], [], LIMIT_S)
        if not ready:
            raise RuntimeError(f"a process did not {word} within {LIMIT_S} s")
        if self._process.stdout.readline().strip() != "done":
            # Its output is closed a moment before it has ended: `lives` would be true until then.
            self._process.wait(LIMIT_S)
            raise RuntimeError(f"a process failed when it was told to {word}")

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Kill the process if it lives, and close its pipes."""
        self.kill()
        with suppress(BrokenPipeError), self._process:
            pass


@contextmanager
def pair(bench: Bench, pages: int, linked: bool = False) -> Iterator[list[Holder]]:
    """Run two processes without pages while the block runs; `linked` ones can send pages to each
    other.
    """
    with ExitStack() as stack:
        ends: Sequence[socket.socket | None] = (None, None)
        if linked:
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        holders = []
        for end in ends:
            holders.append(Holder(bench, pages, end))
            stack.callback(holders[-1].end)
        for end in ends:
            if end is not None:
                end.close()  # a killed process's pages shall not live on in this one
        for holder in holders:
            holder.ask("give")
        yield holders


class _Held:
    """Pages in the process that holds them."""

    def __init__(self, driver: CudaDriver, count: int, link: socket.socket | None) -> None:
        self._driver, self._count, self._link = driver, count, link
        self._pages: list[Page] = []
        self._address = driver.reserve(count * driver.page_bytes)
        self._seen = host_buffer(SAMPLE)
        driver.pin(self._seen.address, SAMPLE)

    def words(self) -> dict[str, Callable[[], None]]:
        return {name: getattr(self, name) for name in WORDS}

    def give(self) -> None:
        if self._pages:
            self._driver.unmap(self._address, self._count * self._driver.page_bytes)
            self._driver.release(self._pages)
        self._pages = []

    def take(self) -> None:
        self._pages = self._driver.create(self._count)
        self._driver.map(self._address, self._pages)

    def write(self) -> None:
        self._driver.fill(self._address, MARK, self._count * self._driver.page_bytes)

    def check(self) -> None:
        for page in range(self._count):
            self._driver.copy(
                self._seen.address, self._address + page * self._driver.page_bytes, SAMPLE
            )
            if not self._seen.tensor().eq(MARK).all():
                sys.exit(f"page {page} does not hold what the other process wrote")

    def send(self) -> None:
        assert self._link is not None
        self._driver.unmap(self._address, self._count * self._driver.page_bytes)
        for start in range(0, self._count, AT_ONCE):
            some = self._pages[start : start + AT_ONCE]
            fds = [self._driver.export_page(page) for page in some]
            socket.send_fds(self._link, [b"p"], fds)
            _close(fds)
        self._driver.release(self._pages)
        self._pages = []

    def receive(self) -> None:
        assert self._link is not None
        while len(self._pages) < self._count:
            text, fds, _, _ = socket.recv_fds(self._link, 1, AT_ONCE)
            if not text:
                sys.exit("the other process has gone")
            self._pages += [self._driver.import_page(fd) for fd in fds]
            _close(fds)
        self._driver.map(self._address, self._pages)


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page_bytes", type=int)
    parser.add_argument("pages", type=int)
    parser.add_argument("--dry", metavar="DEVICE", help="the stand-in's shared device")
    parser.add_argument("--link", type=int, metavar="FD", help="a socket to the other process")
    options = parser.parse_args()
    opened = dry(device=options.dry).open if options.dry else CudaDriver
    link = None if options.link is None else socket.socket(fileno=options.link)
    driver = opened(options.page_bytes, shareable=link is not None)
    words = _Held(driver, options.pages, link).words()
    for line in sys.stdin:
        words[line.strip()]()
        print("done", flush=True)


if __name__ == "__main__":
    main()
