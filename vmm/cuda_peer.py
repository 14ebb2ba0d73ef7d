"""Copies between two GPUs of this machine, one of which borrows memory of the other.

The peer's memory is that of a `CudaDriver` for its device: created there, or created by another
process and imported (`export_page`, `import_page`). A link's streams belong to the near device and
are ordered with its compute by events, as all of its streams are.
"""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from vmm.cuda import CudaDriver
from vmm.cuda_calls import Code, answer, call, refusal
from vmm.cuda_device import get_device
from vmm.driver import DeviceUnavailable, Event, NotMapped, Stream

ENABLED = (Code.CUDA_SUCCESS, Code.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)


class PeerLink:
    """Access of the devices of two drivers of this process to each other's memory. Raises
    `DeviceUnavailable` if one of them cannot reach the other's.

    It has no `close`: access between two devices belongs to the process, torch included, and ends
    with their contexts. Each driver keeps its own pages; both must outlive the link's streams.
    """

    def __init__(self, near: CudaDriver, far: CudaDriver) -> None:
        self.near, self.far = near, far
        _enable(near, far)
        _enable(far, near)

    def stream(self) -> PeerStream:
        """A new stream of the near device."""
        return PeerStream(self)

    def side(self, address: int, nbytes: int) -> CudaDriver:
        """The driver in whose reservations these bytes lie. Raises `NotMapped` if not all are
        mapped.
        """
        for driver in (self.near, self.far):
            with driver.opened() as table:
                if table.holds(address, nbytes):
                    table.check_mapped(address, nbytes)
                    return driver
        raise NotMapped(f"{nbytes} bytes at {address:#x} are neither device's")


class PeerStream(Stream):
    """Copies between the two devices, in order. Events are those of the near driver."""

    def __init__(self, link: PeerLink) -> None:
        self._link, self._stream = link, link.near.stream()

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Enqueue a copy. Each address may be of either device; both must be mapped."""
        # One after the other: two links in opposite directions shall not wait for each other.
        to, come = self._link.side(dst, nbytes), self._link.side(src, nbytes)
        with self._stream.enqueuing():
            sides = dst, to.context, src, come.context
            call(cu.cuMemcpyPeerAsync, *sides, nbytes, self._stream.handle)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Fill memory of the near device; memory of the far one cannot be filled."""
        self._stream.fill(address, byte, nbytes)

    def record(self, event: Event) -> None:
        self._stream.record(event)

    def wait_for(self, event: Event) -> None:
        self._stream.wait_for(event)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def close(self) -> None:
        self._stream.close()


def _enable(one: CudaDriver, other: CudaDriver) -> None:
    """Give the device of `one` access to the memory of the device of `other`, unless it has it
    already. Raises `DeviceUnavailable` if it cannot reach that memory, and another `VmmError` if
    the driver refuses.
    """
    devices = get_device(one.facts.index), get_device(other.facts.index)
    if not call(cu.cuDeviceCanAccessPeer, *devices):
        raise DeviceUnavailable(
            f"device {one.facts.index} ({one.facts.name}) cannot reach the memory of device "
            f"{other.facts.index}: `nvidia-smi topo -p2p r` shows which can"
        )
    values: tuple[Any, ...] = (other.context, 0)
    with one.entered():
        (code,) = answer(cu.cuCtxEnablePeerAccess, *values)
    if code not in ENABLED:
        raise refusal("cuCtxEnablePeerAccess", values, code)
