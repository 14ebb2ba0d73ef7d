"""A process that holds pages of the device, or none, as it is told: ``python -m ... --help``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from select import select

from benchmarks.gpu.bench import Bench, dry
from vmm.cuda import CudaDriver
from vmm.driver import Page
from vmm.exchange import Exchange
from vmm.host import host_buffer

ROOT = Path(__file__).parents[2]
LIMIT_S = 60
MARK, SAMPLE = 0x5A, 4096
"""What is written into all pages, and how many bytes of each are looked at."""
WORDS = ("take", "give", "send", "receive", "write", "check")
PATIENCE_S = 10.0
"""For the depot: what it does not take or have is a failure here, and no reason to create."""


class Holder:
    """The process, seen from the one that tells it.

    Words: "take" (create all pages and map them), "give" (unmap and release them), with a depot
    "send" (unmap them, and let it have them) and "receive" (have them from it, and map), "write"
    into all of them, and "check" that something was written.
    """

    def __init__(self, bench: Bench, pages: int, depot: Path | None = None) -> None:
        words = [sys.executable, "-m", "benchmarks.gpu.holder", str(bench.page_bytes), str(pages)]
        words += ["--dry", bench.device] if bench.dry else []
        words += ["--depot", str(depot)] if depot else []
        self._process = subprocess.Popen(
            words,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def ask(self, word: str) -> None:
        """Tell, and wait until it is done. Raises `RuntimeError` if it cannot, and has ended."""
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
        """Kill it, if it lives, and let go of what leads to it."""
        self.kill()
        with suppress(BrokenPipeError), self._process:
            pass


@contextmanager
def pair(bench: Bench, pages: int, depot: Path | None = None) -> Iterator[list[Holder]]:
    """Two processes that have started and hold nothing; with a depot they can send pages."""
    with ExitStack() as stack:
        holders = []
        for _ in range(2):
            holders.append(Holder(bench, pages, depot))
            stack.callback(holders[-1].end)
        for holder in holders:
            holder.ask("give")
        yield holders


class _Held:
    """The pages, seen from the process that holds them."""

    def __init__(self, driver: CudaDriver, count: int, depot: Path | None) -> None:
        self._driver, self._count, self._exchange = driver, count, None
        if depot is not None:
            self._exchange = Exchange(driver, depot, driver.facts.uuid, "holder", PATIENCE_S)
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
        assert self._exchange is not None
        self._driver.unmap(self._address, self._count * self._driver.page_bytes)
        self._exchange.deposit(self._pages)
        self._pages = []

    def receive(self) -> None:
        assert self._exchange is not None
        self._pages = self._exchange.withdraw(self._count)
        if (had := len(self._pages)) < self._count:
            sys.exit(f"{had} of {self._count} pages came through the depot")
        self._driver.map(self._address, self._pages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page_bytes", type=int)
    parser.add_argument("pages", type=int)
    parser.add_argument("--dry", metavar="DEVICE", help="the stand-in's shared device")
    parser.add_argument("--depot", type=Path, metavar="SOCKET", help="between it and others")
    options = parser.parse_args()
    opened = dry(device=options.dry).open if options.dry else CudaDriver
    driver = opened(options.page_bytes, shareable=options.depot is not None)
    words = _Held(driver, options.pages, options.depot).words()
    for line in sys.stdin:
        words[line.strip()]()
        print("done", flush=True)


if __name__ == "__main__":
    main()
