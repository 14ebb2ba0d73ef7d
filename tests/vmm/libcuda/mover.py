"""An engine's KV cache on a device that others share, with a depot between them.

Arguments: the shared file, the sizes of device and page, the depot's socket, a name's byte. On
"take N" it maps N more extents of a page and answers whether all were clear; it then writes its
byte over them. On "give N" it unmaps N. Each answer: extents held, tries, and clear or not.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

from tests.vmm.libcuda import StandIn
from vmm.driver import OutOfMemory
from vmm.exchange import Exchange
from vmm.pages import PagePool
from vmm.space import ExtentMap, Range

PATIENCE_S = 5.0
"""For memory of a killed process, as an engine has it: `mirage.engine.reconcile`."""


def main() -> None:
    shared, depot = sys.argv[1], Path(sys.argv[4])
    total, page, byte = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5])
    standin = StandIn.load()
    standin.reset(total, page)
    standin.share(shared)
    from vmm.cuda import CudaDriver

    driver = CudaDriver(page, shareable=True, tensors_on="cpu")
    pool = PagePool(driver, total, Exchange(driver, depot, driver.facts.uuid, str(byte), 1.0))
    kv = ExtentMap(Range(driver, total), pool, [0], page, total // page)
    print("ready", flush=True)
    for line in sys.stdin:
        word, _, number = line.partition(" ")
        tries, clear = 0, True
        if word == "take":
            tries, clear = take(kv, int(number), byte)
        else:
            kv.unmap(sorted(kv.mapped)[: int(number)])
            pool.trim()
        pool.check_integrity()
        driver.check_integrity()
        print(len(kv.mapped), tries, "clear" if clear else "dirty", flush=True)


def take(kv: ExtentMap, count: int, byte: int) -> tuple[int, bool]:
    """How often it was tried, and whether nothing could be read in what was mapped."""
    extents = [e for e in range(kv.extents) if e not in kv.mapped][:count]
    deadline, tries = time.monotonic() + PATIENCE_S, 1
    while True:
        try:
            kv.map(extents)
            break
        except OutOfMemory:
            if time.monotonic() > deadline:
                raise
            tries += 1
            time.sleep(0.001)
    clear = True
    for extent in extents:
        address = kv.range.address + extent * kv.extent_bytes
        clear &= not any(ctypes.string_at(address, kv.extent_bytes))
        kv.range.driver.fill(address, byte, kv.extent_bytes)
    return tries, clear


if __name__ == "__main__":
    main()
