"""Findings on the GPU: its driver, the memory that it can map, and the speed of its link."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mirage.doctor.finding import Finding, FindingState, limited, missing, works
from mirage.units import align_up, size
from vmm import libc
from vmm.driver import VmmError
from vmm.host import host_buffer

if TYPE_CHECKING:
    from vmm.cuda import CudaDriver
    from vmm.cuda_device import DeviceFacts

TOPIC = "GPU"
PROBE_BYTES = 256 << 20
LOCKED_BYTES = 2 << 20
ROUNDS = 7
HOST_INSTEAD = "without a GPU, serve from host memory: device.kind host"


def findings(index: int) -> Iterator[Finding]:
    """Findings on GPU `index`. They end with the first missing thing that all later tests need."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        yield missing(TOPIC, "cuda-python", "not installed", "pip install 'cuda-python>=13,<14'")
        return
    from vmm.cuda_device import device_facts, driver_version

    try:
        version = driver_version()
        facts = device_facts(index)
    except VmmError as error:
        yield missing(TOPIC, "driver and device", str(error), HOST_INSTEAD)
        return
    yield (found := _driver(version))
    if found.state is FindingState.MISSING:
        return
    yield works(
        TOPIC,
        "device",
        f"{facts.name}, {size(facts.total_bytes)}, compute {facts.capability[0]}."
        f"{facts.capability[1]}",
    )
    yield works(TOPIC, "copy engines", str(facts.copy_engines))
    unlocked = "yes" if facts.pageable_access else "no: masters are locked for it"
    yield works(TOPIC, "reads unlocked host memory", unlocked)
    yield from _memory(facts)


def _driver(version: tuple[int, int]) -> Finding:
    """Finding on the driver's CUDA `version`: missing if a library of `_built_for` is built for a
    later major version.

    Such a library refuses the driver, in some cases only while it serves.
    """
    words = "CUDA {}.{}".format(*version)
    late = [f"{name} for CUDA {major}" for name, major in _built_for() if major > version[0]]
    if not late:
        return works(TOPIC, "driver", words)
    return missing(
        TOPIC,
        "driver",
        f"{words}, and there is {' and '.join(late)}",
        "install a newer driver (580 for CUDA 13), or CUDA's package for forward compatibility",
    )


def _built_for() -> Iterator[tuple[str, int]]:
    """Libraries that call the driver, and the major version of CUDA for which each is built."""
    yield "cuda-python", int(metadata.version("cuda-bindings").split(".")[0])
    if find_spec("torch") is not None:
        import torch

        if (version := torch.version.cuda) is not None:
            yield "torch", int(version.split(".")[0])


def _near(node: int | None) -> Iterator[Finding]:
    """Finding on host memory at the GPU's NUMA node, where masters of layers belong; none if the
    machine has no NUMA nodes.
    """
    if node is None:
        return
    what = "host memory near the GPU"
    with closing(host_buffer(LOCKED_BYTES)) as buffer:
        refused = libc.prefer(buffer.address, LOCKED_BYTES, node)
    if not refused:
        yield works(TOPIC, what, f"from NUMA node {node}")
        return
    yield limited(
        TOPIC,
        what,
        f"mbind is refused ({os.strerror(refused)}): it may be that of another socket",
        "in a container add CAP_SYS_NICE, or a seccomp profile with mbind; else copies may take "
        "twice as long",
    )


def _memory(facts: DeviceFacts) -> Iterator[Finding]:
    if not facts.virtual_memory:
        yield missing(
            TOPIC,
            "virtual memory management",
            "the device has no virtual memory management",
            "use Volta or later, without a vGPU profile that lacks it",
        )
        return
    yield works(TOPIC, "virtual memory management", f"granularity {facts.granularity >> 10} KiB")
    if facts.shareable:
        yield works(TOPIC, "pages between processes", "by file descriptors")
    else:
        advice = "leave tiers.peer out: memory of other GPUs is shared by file descriptors"
        yield limited(TOPIC, "pages between processes", "no", advice)
    yield from _near(facts.host_node)
    yield from _peers(facts.index)
    yield from _link(facts.index)


def _peers(index: int) -> Iterator[Finding]:
    """Finding on other GPUs that may lend memory (tiers.peer); none if there are no other GPUs."""
    from vmm.cuda_device import device_count
    from vmm.cuda_slab import reachable

    others = [other for other in range(device_count()) if other != index]
    near = [str(other) for other in others if reachable(index, other)]
    if near:
        yield works(TOPIC, "memory of other GPUs", f"reaches that of GPU {', '.join(near)}")
    elif others:
        advice = "leave tiers.peer out: `nvidia-smi topo -p2p r` shows which GPUs can"
        yield limited(TOPIC, "memory of other GPUs", f"reaches none of {len(others)}", advice)


def _link(index: int) -> Iterator[Finding]:
    from vmm.cuda import CudaDriver

    try:
        with CudaDriver(device=index) as driver:
            free, total = driver.memory_info()
            yield works(TOPIC, "memory", f"{size(free)} of {size(total)} free at this moment")
            if (refused := _refuses_to_lock(driver)) is not None:
                yield refused
                return
            rate = _measured(driver)
    except VmmError as error:
        yield missing(TOPIC, "link", str(error), "free some memory of the device")
        return
    yield works(TOPIC, "link, host to device", f"{rate / 1e9:.1f} GB/s from locked memory")


def _refuses_to_lock(driver: CudaDriver) -> Finding | None:
    """Finding on a driver that refuses to lock host memory, as a GPU in confidential mode does;
    None if it locks it.
    """
    with closing(host_buffer(LOCKED_BYTES)) as buffer:
        try:
            driver.pin(buffer.address, LOCKED_BYTES)
        except VmmError as error:
            return limited(
                TOPIC,
                "locked host memory",
                f"refused ({error})",
                "no layer can stream: max_percent: 0 serves without, or leave confidential mode",
            )
        driver.unpin(buffer.address)
    return None


def _measured(driver: CudaDriver) -> float:
    """Bytes per second of the link, by the median of some copies from locked host memory."""
    page = driver.page_bytes
    nbytes = align_up(PROBE_BYTES, page)
    with ExitStack() as ends:
        source = ends.enter_context(closing(host_buffer(nbytes)))
        address, stream = driver.reserve(nbytes), driver.stream()
        driver.pin(source.address, nbytes)
        ends.callback(driver.unpin, source.address)
        driver.map(address, driver.create(nbytes // page))
        seconds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            stream.copy(address, source.address, nbytes)
            stream.synchronize()
            seconds.append(time.perf_counter() - start)
    return nbytes / sorted(seconds)[ROUNDS // 2]
