"""Two processes pass memory back and forth; one is killed in the middle."""

from __future__ import annotations

import random
import time
from functools import partial

from benchmarks.gpu.bench import MIB, Bench
from benchmarks.gpu.holder import Holder, pair
from benchmarks.gpu.rows import Row, Skipped, alternating, medians, ms, timed
from vmm.cuda import CudaDriver
from vmm.cuda_device import device_facts

TIMES = 1000
PAGES, DRY_PAGES = 256, 32
"""More than the context of a process takes, so that its end alone does not look like theirs."""
LATE_S = 5.0
"""How long the device may take to give a killed process's memory back."""
NOISE_BYTES = 64 * MIB
"""By which a GPU's free memory may differ for other reasons."""


def passing(bench: Bench) -> Row:
    """Release here, create there, a thousand times; then a kill at a random moment."""
    pages = _pages(bench)
    with bench.open(bench.page_bytes) as driver:
        before = driver.memory_info()[0]
        with pair(bench, pages) as holders:
            empty = driver.memory_info()[0]
            each_s = _passed(holders)
            back_s = _killed(bench, driver, holders, empty)
        _until_free(bench, driver, before)
        lost = max(0, before - driver.memory_info()[0])
    return Row(
        "two processes",
        f"{pages * bench.page_bytes // MIB} MiB passed {TIMES} times, then a process killed",
        f"{lost / MIB:.0f} MiB lost, {ms(each_s)} each, free {back_s * 1e3:.0f} ms after the kill",
        "nothing lost",
        lost <= _noise(bench) and back_s <= LATE_S,
        {"each_s": each_s, "after_kill_s": back_s, "lost_bytes": lost},
    )


def exported(bench: Bench) -> Row:
    """Passing pages to another process as file descriptors, against releasing and creating."""
    if not device_facts(0).shareable:
        raise Skipped("this device cannot share memory by file descriptors")
    pages = _pages(bench)
    with pair(bench, pages) as plain, pair(bench, pages, linked=True) as linked:
        plain[0].ask("take")
        linked[0].ask("take")
        ways = {
            "export": partial(_there_and_back, linked, "send", "receive"),
            "create": partial(_there_and_back, plain, "give", "take"),
        }
        middle = medians(
            alternating(
                {name: lambda way=way: timed(way) / 2 for name, way in ways.items()}, bench.rounds
            )
        )
    return Row(
        "export and import",
        f"{pages} pages of {bench.page_bytes / MIB:.0f} MiB to another process by descriptor",
        f"{middle['export'] / middle['create']:.2f}x of release and create "
        f"({ms(middle['export'])})",
        details=middle,
    )


def _pages(bench: Bench) -> int:
    return DRY_PAGES if bench.dry else PAGES


def _noise(bench: Bench) -> int:
    return 0 if bench.dry else NOISE_BYTES


def _there_and_back(holders: list[Holder], away: str, here: str) -> None:
    for giver, taker in (holders, holders[::-1]):
        giver.ask(away)
        taker.ask(here)


def _passed(holders: list[Holder]) -> float:
    """Seconds each time. In the end nobody holds any."""
    holders[1].ask("take")
    start = time.perf_counter()
    for i in range(TIMES):
        holders[(i + 1) % 2].ask("give")
        holders[i % 2].ask("take")
    seconds = time.perf_counter() - start
    holders[(TIMES + 1) % 2].ask("give")
    return seconds / TIMES


def _killed(bench: Bench, driver: CudaDriver, holders: list[Holder], empty: int) -> float:
    """Seconds until a killed process's memory is free; the other one then takes it."""
    victim, other = random.sample(holders, 2)
    victim.tell("loop")
    time.sleep(random.uniform(0.01, 0.2))
    victim.kill()
    seconds = _until_free(bench, driver, empty)
    other.ask("take")
    other.ask("give")
    return seconds


def _until_free(bench: Bench, driver: CudaDriver, wanted: int) -> float:
    """Seconds until so many bytes are free again, or twice what may pass."""
    start = time.perf_counter()
    while driver.memory_info()[0] < wanted - _noise(bench):
        if time.perf_counter() - start > 2 * LATE_S:
            break
        time.sleep(0.005)
    return time.perf_counter() - start
