"""Two processes pass memory back and forth; one is killed in the middle."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from select import select

from benchmarks.gpu.bench import MIB, Bench
from benchmarks.gpu.rows import Row, Skipped
from vmm.cuda import CudaDriver

ROOT = Path(__file__).parents[2]
TIMES = 1000
PAGE_BYTES = 8 * MIB
PAGES = 256
"""More than the context of a process takes, so that its end alone does not look like theirs."""
LIMIT_S = 60
LATE_S = 5.0
"""How long the device may take to give a killed process's memory back."""
NOISE_BYTES = 64 * MIB
"""By which the device's free memory may differ for other reasons."""


class Child:
    """A process that holds all the pages, or none, as it is told."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.processes"],
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
        """Tell, and wait until it is done. Raises `RuntimeError` if the child cannot."""
        self.tell(word)
        assert self._process.stdout is not None
        ready, _, _ = select([self._process.stdout], [], [], LIMIT_S)
        if not ready:
            raise RuntimeError(f"a process did not {word} within {LIMIT_S} s")
        if self._process.stdout.readline().strip() != "done":
            raise RuntimeError(f"a process failed when it was told to {word}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def passing(bench: Bench) -> Row:
    """Release here, create there, a thousand times; then a kill at a random moment."""
    if bench.dry:
        raise Skipped("each process would have a stand-in of its own")
    with bench.open(PAGE_BYTES) as driver:
        before = driver.memory_info()[0]
        children = [Child(), Child()]
        try:
            for child in children:
                child.ask("give")  # it has started, and holds its context only
            empty = driver.memory_info()[0]
            each_s = _passed(children)
            back_s = _killed(driver, children, empty)
        finally:
            for child in children:
                child.kill()
        _until_free(driver, before)
        lost = max(0, before - driver.memory_info()[0])
    return Row(
        "two processes",
        f"{PAGES * PAGE_BYTES // MIB} MiB passed {TIMES} times, then a process killed",
        f"{lost / MIB:.0f} MiB lost, {each_s * 1e3:.2f} ms each, free {back_s * 1e3:.0f} ms after "
        "the kill",
        "nothing lost",
        lost <= NOISE_BYTES and back_s <= LATE_S,
    )


def _passed(children: list[Child]) -> float:
    """Seconds each time."""
    children[1].ask("take")
    start = time.perf_counter()
    for i in range(TIMES):
        children[(i + 1) % 2].ask("give")
        children[i % 2].ask("take")
    seconds = time.perf_counter() - start
    children[(TIMES + 1) % 2].ask("give")
    return seconds / TIMES


def _killed(driver: CudaDriver, children: list[Child], empty: int) -> float:
    """Seconds until a killed process's memory is free; the other one then takes it."""
    random.shuffle(children)
    victim, other = children
    victim.tell("loop")
    time.sleep(random.uniform(0.01, 0.2))
    victim.kill()
    seconds = _until_free(driver, empty)
    other.ask("take")
    other.ask("give")
    return seconds


def _until_free(driver: CudaDriver, wanted: int) -> float:
    """Seconds until so many bytes are free again, or twice what may pass."""
    start = time.perf_counter()
    while driver.memory_info()[0] < wanted - NOISE_BYTES:
        if time.perf_counter() - start > 2 * LATE_S:
            break
        time.sleep(0.005)
    return time.perf_counter() - start


def _serve() -> None:
    """The child."""
    driver = CudaDriver(PAGE_BYTES)
    pages = driver.create(0)
    for line in sys.stdin:
        word = line.strip()
        if word == "give":
            driver.release(pages)
            pages = []
        elif word == "take":
            pages = driver.create(PAGES)
        while word == "loop":
            driver.release(pages)
            pages = driver.create(PAGES)
        print("done", flush=True)


if __name__ == "__main__":
    _serve()
