"""Free memory of the device before a command begins."""

from __future__ import annotations

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Row

GIB = 1 << 30
FREE = 0.9
"""Part of the device's memory that is free unless another program has some, or an engine was left
behind.
"""


def free(bench: Bench) -> Row:
    """Row on the free device memory. A process that an earlier command left shows here, before
    other rows fail for lack of memory.
    """
    with bench.open(bench.page_bytes) as driver:
        available, total = driver.memory_info()
    return Row(
        "memory",
        "the device's memory that is free as the command begins",
        f"{available / GIB:.1f} of {total / GIB:.1f} GiB are free",
        f">= {FREE:.0%}",
        available >= FREE * total,
        {"free_bytes": available, "total_bytes": total},
    )
