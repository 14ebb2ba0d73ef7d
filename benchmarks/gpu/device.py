"""Free memory of the device before a command begins."""

from __future__ import annotations

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Row

GIB = 1 << 30
FREE = 0.9
"""Less of a device is free where another program has it, or an engine was left behind."""


def free(bench: Bench) -> Row:
    """A process that was left behind shows here, before rows fail for want of memory."""
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
