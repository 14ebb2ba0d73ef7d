"""Rows on two processes that pass device memory back and forth, one of which is killed."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from functools import partial

from benchmarks.gpu.bench import MIB, Bench
from benchmarks.gpu.holder import Holder, pair
from benchmarks.gpu.rows import Row, Skipped, alternating, medians, ms, timed
from vmm.cuda import CudaDriver
from vmm.cuda_device import device_facts

TIMES = 1000
PASSING = 0.6
"""Part of the time of the row for exchanges of pages."""
PAGES, DRY_PAGES = 256, 2
"""Number of pages on a GPU, and of a dry run. On a GPU the pages are more bytes than the context of
a process takes, so that the end of a context does not look like their release.
"""
KILLED_AFTER_S = 0.01, 0.2
LATE_S = 5.0
"""Half of the seconds that the device may take to give a killed process's memory back."""
NOISE_BYTES = 64 * MIB
"""Bytes by which a GPU's free memory may differ for other reasons."""
WAYS = {"create": ("give", "take"), "export": ("send", "receive")}
"""Ways to pass pages, each with the command for the giving and for the taking process (`Holder`):
`create` (one process releases the pages, the other creates new ones) and `export` (by file
descriptors).
"""


def passing(bench: Bench) -> Row:
    """Row on two processes: one releases pages and the other creates them, up to a thousand times;
    then one is killed in the middle.
    """
    pages = _pages(bench)
    with bench.open(bench.page_bytes) as driver:
        before = driver.memory_info()[0]
        with pair(bench, pages) as holders:
            empty = driver.memory_info()[0]
            times, each_s = _passed(holders, "create", PASSING * bench.share())
            back_s = _killed(bench, driver, holders, "create", empty)
        lost = _lost(bench, driver, before)
    return Row(
        "two processes",
        f"{pages * bench.page_bytes // MIB} MiB passed {times} times, one killed as it went on",
        f"{lost / MIB:.0f} MiB lost in {times} times, {ms(each_s)} each, free {back_s * 1e3:.0f} "
        "ms after the kill",
        "nothing lost",
        lost <= _noise(bench) and back_s < 2 * LATE_S,
        {"each_s": each_s, "after_kill_s": back_s, "lost_bytes": lost, "times": times},
    )


def exported(bench: Bench) -> Row:
    """Row on passing pages to another process by file descriptors, relative to releasing and
    creating them.

    Engines release and create. If this row gives much less than 1, passing them would be worth it.
    Raises `Skipped` if the device cannot share memory so.
    """
    if not device_facts(0).shareable:
        raise Skipped("this device cannot share memory by file descriptors")
    pages = _pages(bench)
    with bench.open(bench.page_bytes) as driver:
        before = driver.memory_info()[0]
        with (
            pair(bench, pages) as plain,
            pair(bench, pages, linked=True) as linked,
        ):
            empty = driver.memory_info()[0]
            plain[0].ask("take")
            linked[0].ask("take")
            ways = {
                "export": partial(_there, linked, "export"),
                "create": partial(_there, plain, "create"),
            }
            middle = medians(alternating(ways, bench.rounds))
            linked[0].ask("write")
            _pass("export", *linked)
            linked[1].ask("check")
            _pass("create", *linked[::-1])
            for holders in (plain, linked):
                holders[0].ask("give")
            _killed(bench, driver, linked, "export", empty)
        lost = _lost(bench, driver, before)
    return Row(
        "export and import",
        f"{pages} pages of {bench.page_bytes / MIB:.0f} MiB to another process; "
        "one killed as it went on",
        f"{middle['export'] / middle['create']:.2f}x of release and create "
        f"({ms(middle['export'])}), {lost / MIB:.0f} MiB lost",
        "nothing lost",
        lost <= _noise(bench),
        middle | {"lost_bytes": lost},
    )


def _pages(bench: Bench) -> int:
    return DRY_PAGES if bench.dry else PAGES


def _noise(bench: Bench) -> int:
    return 0 if bench.dry else NOISE_BYTES


def _there(holders: list[Holder], way: str) -> float:
    """Seconds of passing pages from the first process to the second; `way` is a key of `WAYS`.

    The pages then go back by release and create, because a driver exports no page that it has
    imported. The seconds do not include this.
    """
    seconds = timed(partial(_pass, way, *holders))
    _pass("create", *holders[::-1])
    return seconds


def _pass(way: str, giver: Holder, taker: Holder) -> None:
    """Move all pages from the giver's process to the taker's; `way` is a key of `WAYS`."""
    away, here = WAYS[way]
    giver.ask(away)
    taker.ask(here)


def _passed(holders: list[Holder], way: str, seconds: float) -> tuple[int, float]:
    """Number of times that pages were passed within `seconds`, and the mean seconds of each; `way`
    is a key of `WAYS`. At the end neither process has a page.
    """
    holders[0].ask("take")
    start, times = time.perf_counter(), 0
    while times < TIMES and time.perf_counter() - start < seconds:
        giver, taker = holders[times % 2], holders[(times + 1) % 2]
        _pass(way, giver, taker)
        taker.ask("write")
        times += 1
    took = time.perf_counter() - start
    holders[times % 2].ask("give")
    return times, took / max(times, 1)


def _killed(bench: Bench, driver: CudaDriver, holders: list[Holder], way: str, empty: int) -> float:
    """Seconds from the kill of one process, while pages pass, until `empty` bytes are free again.

    `way` is a key of `WAYS`. The process that was not killed gives its pages back, and then takes
    all. If it ended with the killed one, which may happen when pages were on their way to it, there
    is nothing to give back.
    """
    victim, other = random.sample(holders, 2)
    killer = threading.Timer(random.uniform(*KILLED_AFTER_S), victim.kill)
    holders[0].ask("take")
    killer.start()
    with suppress(RuntimeError):  # of the killed one, or of who waits for it
        while True:
            _there(holders, way)
    killer.join()
    with suppress(RuntimeError):
        other.ask("give")
    seconds = _until_free(bench, driver, empty)
    if other.lives:
        other.ask("take")
        other.ask("give")
    return seconds


def _lost(bench: Bench, driver: CudaDriver, before: int) -> int:
    """Bytes of the device that are still missing after all processes have ended."""
    _until_free(bench, driver, before)
    return max(0, before - driver.memory_info()[0])


def _until_free(bench: Bench, driver: CudaDriver, wanted: int) -> float:
    """Seconds until `wanted` bytes of the device are free, or twice `LATE_S` if they are not free
    by then."""
    start = time.perf_counter()
    while driver.memory_info()[0] < wanted - _noise(bench):
        if time.perf_counter() - start > 2 * LATE_S:
            break
        time.sleep(0.005)
    return time.perf_counter() - start
