"""Slabs: GPU memory that another process of the machine uses as if it were its own device's.

One process lends a slab (`lend`): it creates the memory on its device and exports it. Another
process borrows it (`borrow`) for a GPU that reaches the first: the memory is mapped among that
GPU's addresses, so that any copy of its streams may name it. The borrower then needs no context on
the lending GPU, which would cost some hundred MiB there; so copies are `cuMemcpyAsync`, and not
`cuMemcpyPeerAsync`, which names both contexts.

The memory is free when all processes have closed it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

from cuda.bindings import driver as cu

from vmm.cuda import CudaDriver
from vmm.cuda_calls import call
from vmm.cuda_device import POSIX_FD, access, allocation, get_device
from vmm.driver import DeviceUnavailable, Misaligned


class Slab:
    """`nbytes` of physical memory, mapped at `address` for the driver's device.

    Made by `lend` or `borrow`; calls may come from any thread, one at a time for each slab.
    """

    def __init__(self, driver: CudaDriver, handle: Any, nbytes: int) -> None:
        """Map the handle's memory. The slab owns the handle; on a `VmmError` it is released."""
        self.nbytes = nbytes
        self._driver, self._handle = driver, handle
        with driver.opened(), ExitStack() as undo:
            undo.callback(call, cu.cuMemRelease, handle)
            self.address = int(call(cu.cuMemAddressReserve, nbytes, driver.granularity, 0, 0))
            undo.callback(call, cu.cuMemAddressFree, self.address, nbytes)
            call(cu.cuMemMap, self.address, nbytes, 0, handle, 0)
            undo.callback(call, cu.cuMemUnmap, self.address, nbytes)
            location = allocation(driver.facts.index).location
            call(cu.cuMemSetAccess, self.address, nbytes, [access(location)], 1)
            undo.pop_all()
        self._open = True

    @classmethod
    def lend(cls, driver: CudaDriver, nbytes: int) -> Self:
        """Create `nbytes` of memory on the driver's device, to be lent. Raises `Misaligned` unless
        `nbytes` is a positive multiple of the device's granularity, and `OutOfMemory` if
        the device's memory is short.
        """
        if nbytes <= 0 or nbytes % driver.granularity:
            raise Misaligned(
                f"{nbytes} bytes: use a positive multiple of the device's granularity "
                f"({driver.granularity})"
            )
        with driver.opened():
            made = allocation(driver.facts.index, shareable=True)
            handle = call(cu.cuMemCreate, nbytes, made, 0)
        return cls(driver, handle, nbytes)

    @classmethod
    def borrow(cls, driver: CudaDriver, fd: int, nbytes: int) -> Self:
        """Slab of `nbytes` that another process lent as `fd`. Raises `VmmError` if it cannot be
        imported or mapped.

        The caller keeps `fd` and closes it. `nbytes` is the size at which the slab was lent.
        """
        with driver.opened():
            handle = call(cu.cuMemImportFromShareableHandle, fd, POSIX_FD)
        return cls(driver, handle, nbytes)

    def export(self) -> int:
        """A file descriptor of the slab for another process; the caller closes it. While it is
        open, it keeps the memory allocated.
        """
        with self._driver.opened():
            return int(call(cu.cuMemExportToShareableHandle, self._handle, POSIX_FD, 0))

    def close(self) -> None:
        """Unmap and release the memory. No copy from or to it may be under way. Idempotent. Raises
        `VmmError` if the device refuses.
        """
        if not self._open:
            return
        with self._driver.opened():
            call(cu.cuMemUnmap, self.address, self.nbytes)  # refused, nothing has changed
            self._open = False
            call(cu.cuMemAddressFree, self.address, self.nbytes)
            call(cu.cuMemRelease, self._handle)


def reachable(near: int, far: int) -> bool:
    """True if GPU `near` can use memory of GPU `far`. Raises `DeviceUnavailable` if one of them
    does not exist.
    """
    return bool(call(cu.cuDeviceCanAccessPeer, get_device(near), get_device(far)))


def check_reachable(near: int, far: int) -> None:
    """Raises `DeviceUnavailable`, with advice, unless GPU `near` can use memory of another GPU
    `far`.
    """
    if near == far:
        raise DeviceUnavailable(f"GPU {far} is the engines' own: name another one")
    if not reachable(near, far):
        raise DeviceUnavailable(
            f"GPU {near} cannot reach the memory of GPU {far}: `nvidia-smi topo -p2p r` shows "
            "which can"
        )
