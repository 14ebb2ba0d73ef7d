"""Findings on host memory, which is the device where there is no GPU, and holds the masters beside
a GPU.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from mirage import processors
from mirage.doctor.finding import Finding, limited, missing, works
from mirage.keeper.memfds import HugePages, huge_pages, new_file, seal
from mirage.serve.launch.host_limits import ENGINE_ADDRESSES
from mirage.units import size
from vmm.driver import VmmError
from vmm.file_memory import SHARED_HUGE, huge_pages_allowed
from vmm.host import HostDriver, host_buffer
from vmm.host_memory import address_bytes, host_memory, promised_bytes
from vmm.libc import OS_PAGE_BYTES

TOPIC = "host"
PROBE_BYTES = 64 << 20
ROUNDS = 5
MAP_COUNT = Path("/proc/sys/vm/max_map_count")
CPU_INFO = Path("/proc/cpuinfo")
FEW_MAPS = 65_530
"""Linux's default of vm.max_map_count; each contiguous run of pages takes one mapping."""


def findings() -> Iterator[Finding]:
    """Findings on host memory and the processor."""
    yield _processor()
    yield _memory()
    yield addresses()
    yield _mapping()
    yield _map_count()
    yield shared_huge_pages()
    yield lockable()
    yield of_weights()


def _memory() -> Finding:
    """Finding on the bytes of host memory: available, in all, and allowed to this process."""
    machine, most, promised = psutil.virtual_memory(), host_memory(), promised_bytes()
    words = f"{size(machine.available)} of {size(machine.total)} available"
    if most.bytes < machine.total:
        words += f", {most.whose} {size(most.bytes)}"
    if promised is None:
        return works(TOPIC, "memory", words)
    return limited(
        TOPIC,
        "memory",
        f"{words}, and Linux promises {size(promised)} more",
        "if that is not enough, set vm.overcommit_memory to 0",
    )


def addresses() -> Finding:
    """Finding on the limit of addresses: each engine reserves its own, and maps device memory
    there.
    """
    if (most := address_bytes()) is None:
        return works(TOPIC, "addresses of a process", "without limit")
    advice = f"an engine takes {size(ENGINE_ADDRESSES)} and its share: `ulimit -v unlimited`"
    return limited(TOPIC, "addresses of a process", size(most), advice)


def _processor() -> Finding:
    """Finding on the class of the processor, by which vLLM chooses kernels if it computes on the
    processor."""
    kind = processors.class_of(platform.machine(), _flags())
    if kind is None:
        return limited(
            TOPIC,
            "processor",
            f"{platform.machine()} without AVX2, or unknown to vLLM's kernels",
            "an engine on host memory was tried on x86 with AVX2 or more, see README.md",
        )
    return works(TOPIC, "processor", processors.words(kind))


def _flags() -> list[str]:
    """Features of the first processor, from the ``flags`` of /proc/cpuinfo; empty if the file has
    no such line or cannot be read."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return []
    named = [line.partition(":")[2].split() for line in lines if line.startswith("flags")]
    return next(iter(named), [])


def _mapping() -> Finding:
    """Finding on the host driver: pages are mapped and copied as on a GPU, and the copies timed."""
    try:
        with HostDriver() as driver:
            source = host_buffer(PROBE_BYTES)
            address = driver.reserve(PROBE_BYTES)
            driver.map(address, driver.create(PROBE_BYTES // driver.page_bytes))
            seconds = sorted(_timed(driver, address, source.address) for _ in range(ROUNDS))
            source.close()
    except (VmmError, OSError) as error:
        return missing(
            TOPIC, "pages in reserved addresses", str(error), "Linux with memfd_create is needed"
        )
    rate = PROBE_BYTES / seconds[ROUNDS // 2] / 1e9
    return works(TOPIC, "pages in reserved addresses", f"they work; copies at {rate:.1f} GB/s")


def _timed(driver: HostDriver, dst: int, src: int) -> float:
    start = time.perf_counter()
    driver.copy(dst, src, PROBE_BYTES)
    return time.perf_counter() - start


def shared_huge_pages() -> Finding:
    """Finding on huge pages, in which memory that stands in for a GPU's is allocated and freed
    faster.
    """
    what = "huge pages as device memory"
    if huge_pages_allowed():
        return works(TOPIC, what, "allowed")
    words = f"not allowed: sleeps and wakes take longer; write advise to {SHARED_HUGE}"
    return works(TOPIC, what, words)


def _map_count() -> Finding:
    try:
        most = int(MAP_COUNT.read_text())
    except (OSError, ValueError):
        return limited(TOPIC, "mappings", "vm.max_map_count cannot be read", "see `man proc`")
    if most < FEW_MAPS:
        return limited(
            TOPIC, "mappings", f"at most {most}", f"sysctl -w vm.max_map_count={FEW_MAPS}"
        )
    return works(TOPIC, "mappings", f"at most {most}")


def of_weights(known: HugePages | None = None) -> Finding:
    """Finding on memory for weights that outlive engines: sealed memory files, and huge pages.
    `known` replaces this machine's huge pages.
    """
    pages, what = known or huge_pages(), "memory of weights"
    try:
        fd = new_file(0)
        try:
            os.ftruncate(fd, OS_PAGE_BYTES)
            seal(fd)
        finally:
            os.close(fd)
    except OSError as error:
        words = f"no memory file can be sealed ({error.strerror})"
        return limited(TOPIC, what, words, "set keep_weights: none")
    if not pages.total:
        return works(TOPIC, what, "sealed memory files, no huge pages set aside (vm.nr_hugepages)")
    free = f"{size(pages.free)} of {size(pages.total)} in huge pages free"
    return works(TOPIC, what, f"sealed memory files, {free}")


def lockable() -> Finding:
    """Finding on the limit of locked memory. A GPU's driver locks masters for copies; a host needs
    none.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    words = "without limit" if soft == resource.RLIM_INFINITY else size(soft)
    return works(TOPIC, "lockable memory", f"{words}, a limit that NVIDIA's driver ignores")
