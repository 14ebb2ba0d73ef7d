"""Speed at which host memory for the layers' masters is allocated and filled, by number of threads.

python benchmarks/masters.py [--mib 2048] [--rounds 5] [--threads 1,8]

`buffer` is a master that ends with its engine, `file` one of the keeper, and `device` has pages of
a host as device; `copied` fills the buffer. The kinds alternate. The program prints seconds per GiB
of the first round, and the median of the others. A virtual machine gets memory that it has not
touched from its hypervisor, which takes much longer than clearing it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator

import vmm.at_once
from vmm import HostDriver, Range, host_buffer
from vmm.copy_out import copy_out
from vmm.host_file import HostFile
from vmm.pages import PagePool

PAGE = 2 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=2048, help="a multiple of 2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", default=f"1,{vmm.at_once.MOST_THREADS}")
    options = parser.parse_args()
    nbytes, counts = options.mib << 20, [int(count) for count in options.threads.split(",")]
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds):
        for count in counts:
            vmm.at_once.MOST_THREADS = count
            for what, seconds in _round(nbytes):
                found.setdefault((what, count), []).append(seconds * 2**30 / nbytes)
    print(f"{options.mib} MiB, {len(os.sched_getaffinity(0))} processors; s/GiB: first, median")
    for (what, count), each in sorted(found.items()):
        rest = each[1:] or each
        print(f"{what:<8} {count:>2} threads {each[0]:>6.2f} {statistics.median(rest):>6.2f}")


def _round(nbytes: int) -> Iterator[tuple[str, float]]:
    with HostDriver(PAGE) as driver:
        pool, home = PagePool(driver, nbytes), Range(driver, nbytes)
        yield "device", _timed(lambda: home.back(0, pool.take(nbytes // PAGE, "layer")))
        home.tensor(0, nbytes).fill_(1)
        since = time.perf_counter()
        buffer = host_buffer(nbytes)
        yield "buffer", time.perf_counter() - since
        copies = [(buffer.address, home.address, nbytes)]
        yield "copied", _timed(lambda: copy_out(driver, copies, locked=True))
        buffer.close()
    fd = os.memfd_create("masters", os.MFD_CLOEXEC)
    since = time.perf_counter()
    file = HostFile.grown(fd, nbytes)
    yield "file", time.perf_counter() - since
    file.close()
    os.close(fd)


def _timed(what: Callable[[], object]) -> float:
    since = time.perf_counter()
    what()
    return time.perf_counter() - since


if __name__ == "__main__":
    main()
