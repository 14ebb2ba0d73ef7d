"""The drivers that must keep the contract. A further driver is one more line in `DRIVERS`.

The CUDA driver runs over the stand-in for NVIDIA's library, or over the real library if
MIRAGE_TEST_GPU is set, as ``make gpu-test`` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from vmm import Driver, HostDriver

PAGE = 65536
PAGES = 256
REAL_GPU = bool(os.environ.get("MIRAGE_TEST_GPU"))


def host() -> Driver:
    return HostDriver(page_bytes=PAGE, capacity_bytes=PAGES * PAGE)


def cuda() -> Driver:
    from vmm.cuda import CudaDriver
    from vmm.cuda_device import device_facts

    if REAL_GPU:
        return CudaDriver(capacity_bytes=PAGES * device_facts(0).granularity)
    standin().reset(memory_bytes=PAGES * PAGE, granularity=PAGE)
    return CudaDriver(tensors_on="cpu")


def standin():
    """The stand-in for libcuda, built and loaded. Skips the test where that cannot be done."""
    from tests.vmm.libcuda import NoCompiler, RealDriverLoaded, StandIn

    if REAL_GPU:
        pytest.skip("the real driver is in this process")
    try:
        return StandIn.load()
    except (NoCompiler, RealDriverLoaded) as error:
        pytest.skip(str(error))


DRIVERS = {"host": host, "cuda": cuda}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A new driver with room for 256 pages; its books are checked when the test ends."""
    made = DRIVERS[request.param]()
    yield made
    try:
        made.check_integrity()
    finally:
        made.close()
