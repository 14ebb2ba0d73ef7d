"""Virtual memory of a device: physical pages, reserved addresses, the mapping between them.

`Driver` is the contract, and `HostDriver` implements it on any machine. `PagePool` keeps a process
within its grant. `Range` and `ExtentMap` record which pages are mapped at which address. Nothing
here depends on models.
"""

from vmm.driver import (
    AlreadyMapped,
    Driver,
    DriverClosed,
    Event,
    GrantExceeded,
    Misaligned,
    NotMapped,
    NotReserved,
    OutOfMemory,
    Page,
    StillMapped,
    Stream,
    UnknownPage,
    VmmError,
)
from vmm.host import HostBuffer, HostDriver, host_buffer
from vmm.pages import PagePool
from vmm.space import ExtentMap, Range, extent_blocks

__all__ = [
    "AlreadyMapped",
    "Driver",
    "DriverClosed",
    "Event",
    "ExtentMap",
    "GrantExceeded",
    "HostBuffer",
    "HostDriver",
    "Misaligned",
    "NotMapped",
    "NotReserved",
    "OutOfMemory",
    "Page",
    "PagePool",
    "Range",
    "StillMapped",
    "Stream",
    "UnknownPage",
    "VmmError",
    "extent_blocks",
    "host_buffer",
]
