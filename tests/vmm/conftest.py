"""The drivers that keep the contract. A further driver is one more line in `DRIVERS`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vmm import Driver, HostDriver

PAGE = 65536
DRIVERS = {
    "host": lambda: HostDriver(page_bytes=PAGE, capacity_bytes=256 * PAGE),
}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A fresh driver with room for 256 pages, sound when the test ends."""
    made = DRIVERS[request.param]()
    yield made
    try:
        made.check_integrity()
    finally:
        made.close()
