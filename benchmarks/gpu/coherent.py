"""A GPU that reads host memory by itself, as a GH200 does over NVLink-C2C."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

from benchmarks.gpu.bench import Bench, model
from benchmarks.gpu.rows import Row, Skipped, median, timed
from vmm.cuda import CudaDriver
from vmm.cuda_device import DeviceFacts, attribute, device_facts, get_device
from vmm.host import HostBuffer, host_buffer
from vmm.libc import OS_PAGE_BYTES

AIM_GB_S = 300.0
"""C2C has 450 GB/s each way; a copy engine over PCIe 5 has 55."""


def link(bench: Bench) -> Row:
    """Row on the NUMA nodes of layers' masters, and the speed of a copy from there.

    Raises `Skipped` if the GPU has no coherent link (C2C) to host memory.
    """
    if not attribute(get_device(0), "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES"):
        raise Skipped("this GPU reads host memory through PCIe alone: no C2C to measure")
    return _row(bench, device_facts(0))


def _row(bench: Bench, facts: DeviceFacts) -> Row:
    with model(bench, layers=2) as made, closing(_master(bench, made.driver)) as master:
        nodes = nodes_of(master.address)
        layer, copies = made.layers[0], made.streamer.copies
        made.driver.pin(master.address, master.nbytes)

        def loaded() -> None:
            copies.copy(layer.range.address, master.address, layer.nbytes)
            copies.synchronize()

        rate = layer.nbytes / median([timed(loaded) for _ in range(bench.rounds)]) / 1e9
        made.driver.unpin(master.address)
    near = facts.host_node is None or set(nodes) <= {facts.host_node}
    where = ", ".join(f"{count} pages on node {node}" for node, count in sorted(nodes.items()))
    return Row(
        "C2C",
        "a layer from locked host memory, and the NUMA node that its master lies on",
        f"{rate:.0f} GB/s; {where or 'the system does not tell nodes'}, nearest is "
        f"{facts.host_node}; pages of {OS_PAGE_BYTES >> 10} KiB",
        f">= {AIM_GB_S:.0f} GB/s, from the nearest node",
        rate >= AIM_GB_S and near,
        {"gb_s": rate, "nodes": nodes, "host_node": facts.host_node, "os_page": OS_PAGE_BYTES},
    )


def _master(bench: Bench, driver: CudaDriver) -> HostBuffer:
    """Host memory made as the masters of layers are (`mirage.engine.params`)."""
    buffer = host_buffer(bench.layer_bytes, driver.host_node)
    buffer.tensor().fill_(1)
    return buffer


def nodes_of(address: int, maps: Path = Path("/proc/self/numa_maps")) -> dict[int, int]:
    """Number of pages of the mapping at `address` by NUMA node; empty if the kernel does not
    tell.
    """
    try:
        lines = maps.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    starts = [(int(line.split()[0], 16), line) for line in lines]
    below = [(start, line) for start, line in starts if start <= address]
    if not below:
        return {}
    found = re.findall(r"\bN(\d+)=(\d+)", max(below)[1])
    return {int(node): int(pages) for node, pages in found}
