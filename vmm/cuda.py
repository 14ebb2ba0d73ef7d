"""The driver of an NVIDIA GPU: physical handles mapped into reserved addresses of the device.

A page is one handle of `cuMemCreate`. All pages are of one size, a multiple of the device's
granularity: large ones map and unmap in fewer calls, small ones make smaller extents. Access is set
once for each contiguous range. A call that the page table refuses never reaches the device. A call
that the device refuses is undone; if the undoing is refused too, it is repeated before the next
call.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as cu

from vmm.cuda_calls import call
from vmm.cuda_context import PrimaryContext
from vmm.cuda_device import POSIX_FD, DeviceFacts, access, allocation, device_facts
from vmm.cuda_streams import CudaEvent, CudaStream
from vmm.driver import (
    DeviceError,
    DeviceLost,
    DeviceUnavailable,
    Driver,
    DriverClosed,
    Misaligned,
    OutOfMemory,
    Page,
    VmmError,
)
from vmm.page_table import PageTable

if TYPE_CHECKING:
    import torch


ADDRESSES = 1 << 57
"""Bytes of addresses that no device has. If so many are to be reserved, the device may report an
invalid value instead of lack of memory.
"""

Call = tuple[Any, ...]
"""A function of CUDA's driver, and its arguments."""


class CudaDriver(Driver):
    """Memory of GPU number `device`. Calls may come from any thread.

    `page_bytes` is a multiple of the device's granularity, by default the granularity itself.
    `capacity_bytes` bounds the bytes that exist at the same time; by default only the device does.
    With `shareable`, pages can be exported to other processes. `tensors_on` is the device that
    torch shall assume for addresses, by default this GPU.

    Raises `DeviceUnavailable` if there is no such GPU or it lacks what is asked of it, and
    `Misaligned` for another `page_bytes`. In a forked child the driver is closed, as all of CUDA
    is.
    """

    locks_memory = True

    def __init__(
        self,
        page_bytes: int | None = None,
        capacity_bytes: int | None = None,
        device: int = 0,
        *,
        shareable: bool = False,
        tensors_on: str | None = None,
    ) -> None:
        self._closed = True  # until all is there
        self.facts = device_facts(device)
        _check_able(self.facts, shareable)
        self.host_node = self.facts.host_node
        self.granularity = self.facts.granularity
        self.page_bytes = page_bytes or self.granularity
        if self.page_bytes < 0 or self.page_bytes % self.granularity:
            raise Misaligned(
                f"page_bytes {page_bytes}: use a positive multiple of the device's "
                f"granularity ({self.granularity})"
            )
        self._property = allocation(device, shareable)
        self._context = PrimaryContext(device)
        try:
            with self._context.current():
                self._own = call(cu.cuStreamCreate, cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        except VmmError:
            self._context.close()
            raise
        self.capacity_bytes = capacity_bytes
        self._tensors_on = tensors_on or f"cuda:{device}"
        self._access = access(self._property.location)
        self._table = PageTable(self.page_bytes)
        self._handles: dict[Page, Any] = {}
        self._next = 0
        self._undone: list[Call] = []
        """Calls that undo a failed call, or finish a release, and were refused themselves; in
        order.
        """
        self._pinned: dict[int, int] = {}
        self._lock = threading.RLock()
        self._streams: set[CudaStream] = set()
        self._spent: list[Any] = []
        self._events: weakref.WeakSet[CudaEvent] = weakref.WeakSet()
        self._closed = self._inside = False
        _drivers.add(self)

    def __enter__(self) -> CudaDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Addresses

    def reserve(self, nbytes: int) -> int:
        with self.opened() as table:
            table.check_size(nbytes)
            # The largest power of two in a page: the driver takes no other alignment.
            align = self.page_bytes & -self.page_bytes
            try:
                address = int(call(cu.cuMemAddressReserve, nbytes, align, 0, 0))
            except (OutOfMemory, DeviceError) as error:
                if isinstance(error, DeviceError) and nbytes < ADDRESSES:
                    raise
                raise OutOfMemory(f"reserving {nbytes} bytes of addresses: {error}") from error
            table.add_reservation(address, nbytes)
            return address

    def unreserve(self, address: int) -> None:
        with self.opened() as table:
            nbytes = table.check_unreserve(address)
            call(cu.cuMemAddressFree, address, nbytes)
            table.drop_reservation(address)

    # Pages

    def create(self, count: int) -> list[Page]:
        with self.opened() as table:
            if count < 0:
                raise Misaligned(f"{count} pages: a count is not negative")
            self._check_capacity(count)
            return self._enter_pages(table, self._create_handles(count))

    def create_most(self, count: int) -> list[Page]:
        with self.opened() as table:
            if count < 0:
                raise Misaligned(f"{count} pages: a count is not negative")
            if self.capacity_bytes is not None:
                room = self.capacity_bytes // self.page_bytes - table.page_count
                count = min(count, max(0, room))
            handles, error = self._created(count)
            if error is not None and not isinstance(error, OutOfMemory):
                self._undo(*((cu.cuMemRelease, handle) for handle in handles))
                raise error
            return self._enter_pages(table, handles)

    def release(self, pages: Sequence[Page]) -> None:
        with self.opened() as table:
            table.check_release(pages)
            handles = [self._handles[page] for page in pages]
            # If the first is refused, nothing has changed; a later one is repeated by `_pay`.
            for handle in handles[:1]:
                call(cu.cuMemRelease, handle)
            self._undo(*((cu.cuMemRelease, handle) for handle in handles[1:]))
            for page in pages:
                del self._handles[page]
            table.drop_pages(pages)

    def export_page(self, page: Page) -> int:
        """A file descriptor that represents the page in any process; the caller closes it.

        The page's memory is free when every process has released it and closed the descriptors.
        Raises `DeviceError` if the driver is not `shareable`, or for a page that was imported.
        """
        with self.opened() as table:
            table.check_known([page])
            return int(call(cu.cuMemExportToShareableHandle, self._handles[page], POSIX_FD, 0))

    def import_page(self, fd: int) -> Page:
        """Page of this driver's size that another process exported as `fd`, which the caller
        closes. Raises `OutOfMemory` beyond the capacity, and `DeviceError` if the device refuses
        `fd`.
        """
        with self.opened() as table:
            self._check_capacity(1)
            handle = call(cu.cuMemImportFromShareableHandle, fd, POSIX_FD)
            return self._enter_pages(table, [handle])[0]

    # Mapping

    def map(self, address: int, pages: Sequence[Page]) -> None:
        with self.opened() as table:
            table.check_map(address, pages)
            nbytes = len(pages) * self.page_bytes
            done = 0
            try:
                for page in pages:
                    call(cu.cuMemMap, address + done, self.page_bytes, 0, self._handles[page], 0)
                    done += self.page_bytes
                call(cu.cuMemSetAccess, address, nbytes, [self._access], 1)
            except VmmError:
                if done:
                    self._undo((cu.cuMemUnmap, address, done))
                raise
            table.enter_map(address, pages)

    def unmap(self, address: int, nbytes: int) -> None:
        with self.opened() as table:
            table.check_unmap(address, nbytes)
            call(cu.cuMemUnmap, address, nbytes)
            table.enter_unmap(address, nbytes)

    # Access

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        self.fill_all([(address, nbytes)], byte)

    def fill_all(self, places: Sequence[tuple[int, int]], byte: int) -> None:
        with self.opened() as table:
            for address, nbytes in places:
                table.check_fill(address, byte, nbytes)
            try:
                for address, nbytes in places:
                    call(cu.cuMemsetD8Async, address, byte, nbytes, self._own)
            except VmmError:
                with suppress(VmmError):  # what was enqueued before the refusal has run as well
                    self._finish()
                raise
        self._finish()

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        with self.opened() as table:
            table.check_copy(dst, src, nbytes)
            call(cu.cuMemcpyAsync, dst, src, nbytes, self._own)
        self._finish()

    def pin(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        flags = cu.CU_MEMHOSTREGISTER_PORTABLE
        flags |= cu.CU_MEMHOSTREGISTER_READ_ONLY if read_only else 0
        with self.opened():
            try:
                call(cu.cuMemHostRegister, address, nbytes, flags)
            except DeviceLost:
                raise
            except VmmError as error:
                raise DeviceError(
                    f"{nbytes} bytes of host memory cannot be locked ({error}): it is short, or a "
                    "container or `ulimit -l` limits it"
                ) from error
            self._pinned[address] = nbytes

    def unpin(self, address: int) -> None:
        with self.opened():
            if address in self._pinned:
                call(cu.cuMemHostUnregister, address)
                del self._pinned[address]

    def tensor(self, address: int, nbytes: int) -> torch.Tensor:
        with self.opened() as table:
            table.check_reserved(address, nbytes)
        return _tensor(address, nbytes, self._tensors_on)

    def stream(self) -> CudaStream:
        with self.opened():
            handle = call(cu.cuStreamCreate, cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
            return self._stream(handle, owned=True)

    def adopt(self, handle: int) -> CudaStream:
        """A `CudaStream` over the CUDA handle of a stream that was made elsewhere, for example by
        torch; closing it does not destroy the handle.
        """
        with self.opened():
            return self._stream(cu.CUstream(handle), owned=False)

    def synchronize(self) -> None:
        """Block until all work that this process has enqueued on the device, on any stream, has
        run.
        """
        with self.entered():
            call(cu.cuCtxSynchronize)

    def event(self) -> CudaEvent:
        with self.opened():
            event = CudaEvent(self, self._spent)
            self._events.add(event)
            return event

    # State

    @property
    def context(self) -> Any:
        """The device's primary context, for CUDA calls that take one."""
        return self._context.handle

    def used_bytes(self) -> int:
        """Bytes of this driver's pages. The device's own count includes other processes."""
        with self.opened() as table:
            return table.page_count * self.page_bytes

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the device; memory of other processes counts as used."""
        with self.opened():
            free, total = call(cu.cuMemGetInfo)
            return int(free), int(total)

    def check_integrity(self) -> None:
        with self.opened() as table:
            table.check()
            if set(table.pages) != self._handles.keys():
                raise VmmError(f"{len(self._handles)} handles for {table.page_count} pages")

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
        for stream in list(self._streams):  # unlocked: their last work may take its time
            with suppress(DeviceError):
                stream.close()
        with self._lock, suppress(DeviceError):
            self._closed = True
            with self._context.current():
                for owed in self._last_calls():
                    with suppress(VmmError):  # whatever is left dies with the process
                        call(*owed)
            self._context.close()

    # What streams and events need

    @contextmanager
    def opened(self) -> Iterator[PageTable]:
        """The page table, with CUDA's context current, after the calls that undo an earlier failure
        (`_pay`). Raises `DriverClosed`, and the device's error if it refuses one of these calls
        again.

        Inside another `opened` of the same thread it only checks that the driver is open, because
        pushing and popping the context takes longer than most calls in it.
        """
        with self._lock:
            self._check_open()
            if self._inside:  # the lock is held, so by this thread
                yield self._table
                return
            with self._context.current():
                self._pay()
                self._inside = True
                try:
                    yield self._table
                finally:
                    self._inside = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the driver's context current for blocking calls, without a lock.

        Raises `DriverClosed` if the driver was closed.
        """
        self._check_open()
        with self._context.current():
            yield

    # Inside

    def _finish(self) -> None:
        """Wait for all work on the driver's own stream, without holding the lock."""
        with self.entered():
            call(cu.cuStreamSynchronize, self._own)

    def _check_open(self) -> None:
        if self._closed:
            raise DriverClosed("the driver was closed: its pages and addresses are gone")

    def _check_capacity(self, count: int) -> None:
        held, wanted = self._table.page_count * self.page_bytes, count * self.page_bytes
        if self.capacity_bytes is not None and held + wanted > self.capacity_bytes:
            raise OutOfMemory(
                f"{wanted} bytes wanted, {held} of {self.capacity_bytes} in use: release some first"
            )

    def _create_handles(self, count: int) -> list[Any]:
        handles, error = self._created(count)
        if error is not None:
            self._undo(*((cu.cuMemRelease, handle) for handle in handles))
            if isinstance(error, OutOfMemory):
                raise OutOfMemory(
                    f"{count * self.page_bytes} bytes wanted, the device had "
                    f"{len(handles) * self.page_bytes} of them: release some first ({error})"
                ) from error
            raise error
        return handles

    def _created(self, count: int) -> tuple[list[Any], VmmError | None]:
        """Handles up to the first that the device refuses, and its error; None if all were
        created.
        """
        handles: list[Any] = []
        try:
            while len(handles) < count:
                handles.append(call(cu.cuMemCreate, self.page_bytes, self._property, 0))
        except VmmError as error:
            return handles, error
        return handles, None

    def _enter_pages(self, table: PageTable, handles: list[Any]) -> list[Page]:
        pages = [Page(number) for number in range(self._next, self._next + len(handles))]
        self._next += len(handles)
        self._handles.update(zip(pages, handles, strict=True))
        table.add_pages(pages)
        return pages

    def _undo(self, *calls: Call) -> None:
        """Make `calls`, which undo the beginning of a call that failed, or finish a release. The
        first that the device refuses and those after it stay in `_undone`, to be made later.
        """
        self._undone += calls
        with suppress(VmmError):  # it will be tried again, and the first error is to be seen
            self._pay()

    def _pay(self) -> None:
        """Make the calls of `_undone`, in order. Raises the error of the first that is refused
        again; it stays there, and so do those after it.
        """
        while self._undone:
            call(*self._undone[0])
            self._undone.pop(0)

    def _stream(self, handle: Any, owned: bool) -> CudaStream:
        stream = CudaStream(self, handle, self._streams.discard, owned)
        self._streams.add(stream)
        return stream

    def _last_calls(self) -> Iterator[Call]:
        """Calls that free all that still exists, in an order in which the device accepts them."""
        yield (cu.cuCtxSynchronize,)
        yield from self._undone
        yield cu.cuStreamDestroy, self._own
        for event in [*self._spent, *(event.handle for event in self._events)]:
            yield cu.cuEventDestroy, event
        for address in self._pinned:
            yield cu.cuMemHostUnregister, address
        for mapped in self._table.mapped:
            yield cu.cuMemUnmap, *mapped
        for handle in self._handles.values():
            yield cu.cuMemRelease, handle
        for reservation in self._table.reservations:
            yield cu.cuMemAddressFree, *reservation


def _check_able(facts: DeviceFacts, shareable: bool) -> None:
    if not facts.virtual_memory:
        raise DeviceUnavailable(
            f"device {facts.index} ({facts.name}) has no virtual memory management: use one of "
            "Volta's generation or later, and no vGPU profile without it"
        )
    if shareable and not facts.shareable:
        raise DeviceUnavailable(
            f"device {facts.index} ({facts.name}) cannot share memory by file descriptors"
        )


def _tensor(address: int, nbytes: int, device: str) -> torch.Tensor:
    """Flat uint8 tensor over memory at `address`, made as torch's own CUDA graphs do.

    Other ways ask CUDA's driver for the device of the pointer, which fails while nothing is mapped.
    """
    import torch

    where = torch.device(device)
    storage = torch._C._construct_storage_from_data_pointer(address, where, nbytes)
    return torch.empty(0, dtype=torch.uint8, device=where).set_(storage)


_drivers: weakref.WeakSet[CudaDriver] = weakref.WeakSet()


def _forget_in_child() -> None:
    for driver in list(_drivers):
        driver._lock = threading.RLock()  # another thread may have held it
        driver._closed = True


os.register_at_fork(after_in_child=_forget_in_child)
