"""Speed at which the kernel takes back device memory of a host: the bound of a sleep.

python benchmarks/freeing.py [--mib 1024] [--rounds 5]

Memory files are filled and mapped. Then they are unmapped, and their pages are returned (punched),
in parts of 32 MiB: by one thread, or by one thread that unmaps beside one thread for each file that
punches. In `noted` rows the kernel marks each page as used when it is unmapped; the driver avoids
that. The program prints medians of wall and processor time. Nothing else should use the processors.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from vmm import libc

PART_BYTES = 32 << 20


class Part(NamedTuple):
    """A range of a file, and the address at which it is mapped."""

    fd: int
    offset: int
    address: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024, help="a multiple of 32")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ways: dict[str, tuple[int, Callable[[list[Part]], None]]] = {
        "one thread, noted": (1, lambda parts: _one_thread(parts, libc.fence_off)),
        "one thread": (1, lambda parts: _one_thread(parts, libc.unmap_file)),
        "punched beside, noted, 1 file": (1, lambda parts: _beside(parts, libc.fence_off)),
        "punched beside, 1 file": (1, lambda parts: _beside(parts, libc.unmap_file)),
        "punched beside, 2 files": (2, lambda parts: _beside(parts, libc.unmap_file)),
        "punched beside, 4 files": (4, lambda parts: _beside(parts, libc.unmap_file)),
    }
    print(f"{options.mib} MiB, {os.cpu_count()} processors; ms by the clock, ms of processors")
    for name, (files, free) in ways.items():
        found = [_round(options.mib << 20, files, free) for _ in range(options.rounds)]
        wall, used = (1e3 * statistics.median(each) for each in zip(*found, strict=True))
        print(f"{name:<30} {wall:>6.0f} {used:>6.0f}", flush=True)


def _round(nbytes: int, files: int, free: Callable[[list[Part]], None]) -> tuple[float, float]:
    fds = [os.memfd_create("freeing", os.MFD_CLOEXEC) for _ in range(files)]
    address = libc.reserve(nbytes, PART_BYTES)
    try:
        parts = list(_filled(address, nbytes, fds))
        since, used = time.perf_counter(), time.process_time()
        free(parts)
        took = time.perf_counter() - since, time.process_time() - used
        assert not any(os.fstat(fd).st_blocks for fd in fds), "all is free"
        return took
    finally:
        libc.free(address, nbytes)
        for fd in fds:
            os.close(fd)


def _filled(address: int, nbytes: int, fds: list[int]) -> Iterator[Part]:
    for number, offset in enumerate(range(0, nbytes, PART_BYTES)):
        part = Part(fds[number % len(fds)], offset, address + offset)
        os.posix_fallocate(part.fd, offset, PART_BYTES)
        libc.map_file(part.address, PART_BYTES, part.fd, offset)
        yield part


def _one_thread(parts: list[Part], unmap: Callable[[int, int], None]) -> None:
    for fd, offset, address in parts:
        unmap(address, PART_BYTES)
        libc.punch(fd, offset, PART_BYTES)


def _beside(parts: list[Part], unmap: Callable[[int, int], None]) -> None:
    """Unmap all parts in this thread, while one thread for each file returns their pages."""
    threads = {part.fd: ThreadPoolExecutor(1) for part in parts}
    for fd, offset, address in parts:
        unmap(address, PART_BYTES)
        threads[fd].submit(libc.punch, fd, offset, PART_BYTES)
    for thread in threads.values():
        thread.shutdown()


if __name__ == "__main__":
    main()
