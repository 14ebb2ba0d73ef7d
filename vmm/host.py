"""The driver for any machine: pages of memory files, mapped into reserved addresses.

As on a GPU, memory exists from `create` to `release`, a page may be mapped at several addresses,
and touching an address without a page faults (SIGSEGV). The files end with their process, so the
memory of a killed process is freed.

A page is a place in the files. No place is used twice, since the files are sparse and old places
cost nothing. Pages created together are consecutive (one system call, one kernel mapping), and the
number of a released page never names another one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from vmm import libc
from vmm.at_once import populate
from vmm.driver import (
    DeviceError,
    Driver,
    DriverClosed,
    Misaligned,
    OutOfMemory,
    Page,
    VmmError,
)
from vmm.file_memory import FileMemory
from vmm.host_memory import host_memory
from vmm.page_table import PageTable
from vmm.runs import runs
from vmm.threads import ThreadEvent, ThreadStream

if TYPE_CHECKING:
    import torch

SLICE_S = 0.002
"""Seconds that one slice of a throttled copy takes: the bytes of a slice follow from the rate."""


class HostDriver(Driver):
    """Host memory as device memory. Calls may come from any thread.

    `page_bytes` is a multiple of the operating system's page. `capacity_bytes` bounds the bytes
    that exist at the same time, by default to the memory that this process may use (`host_memory`):
    Linux would allocate more than that and then kill a process. `copy_bytes_per_s` slows the copies
    of streams to the speed of a link, so that a missing wait shows.

    In a forked child the driver is closed and its addresses fault.
    """

    def __init__(
        self,
        page_bytes: int = 65536,
        capacity_bytes: int | None = None,
        copy_bytes_per_s: float | None = None,
    ) -> None:
        if page_bytes <= 0 or page_bytes % libc.OS_PAGE_BYTES:
            raise Misaligned(
                f"page_bytes {page_bytes}: use a positive multiple of {libc.OS_PAGE_BYTES}"
            )
        self.page_bytes = page_bytes
        self.capacity_bytes = host_memory().bytes if capacity_bytes is None else capacity_bytes
        self._copy_bytes_per_s = copy_bytes_per_s
        self._table = PageTable(page_bytes)
        self._next = 0
        self._changes = threading.RLock()
        """Held by each change of the memory, including its system calls."""
        self._lock = threading.Lock()
        """Held while the page table is written, or read by copies, which therefore wait for no
        system call.
        """
        self._streams: set[ThreadStream] = set()
        self._closed = False
        self._memory = FileMemory("vmm")
        self._blank: set[Page] = set()
        """Pages that have not been mapped since they were created."""
        _drivers.add(self)

    def __enter__(self) -> HostDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Addresses

    def reserve(self, nbytes: int) -> int:
        with self._opened() as table:
            table.check_size(nbytes)
            with refusing(f"reserving {nbytes} bytes of addresses"):
                address = libc.reserve(nbytes, self._aligned(nbytes))
            with self._lock:
                table.add_reservation(address, nbytes)
            return address

    def unreserve(self, address: int) -> None:
        with self._opened() as table:
            nbytes = table.check_unreserve(address)
            with refusing(f"unreserving {nbytes} bytes at {address:#x}"):
                libc.free(address, nbytes)
            with self._lock:
                table.drop_reservation(address)

    # Pages

    def create(self, count: int) -> list[Page]:
        with self._opened() as table:
            if count < 0:
                raise Misaligned(f"{count} pages: a count is not negative")
            self._check_capacity(count)
            self._settle()
            each = self._aligned(count * self.page_bytes) // self.page_bytes
            first = -(-self._next // each) * each
            numbers = range(first, first + count)
            if numbers:
                with refusing(f"creating {count} pages of {self.page_bytes} bytes"):
                    self._memory.allocate(*self._place(numbers))
            self._next = numbers.stop
            pages = [Page(number) for number in numbers]
            self._blank.update(pages)
            with self._lock:
                table.add_pages(pages)
            return pages

    def create_most(self, count: int) -> list[Page]:
        with self._opened() as table:
            room = self.capacity_bytes // self.page_bytes - table.page_count
            try:
                return self.create(min(count, max(0, room)))
            except OutOfMemory:  # there is less memory than the capacity
                return []

    def release(self, pages: Sequence[Page]) -> None:
        with self._opened() as table:
            table.check_release(pages)
            for run in runs(sorted(pages)):
                with refusing(f"releasing pages {run[0]} to {run[-1]}", DeviceError):
                    self._memory.punch(*self._place(run))
                with self._lock:
                    table.drop_pages(run)
                self._blank.difference_update(run)

    @contextmanager
    def releasing(self) -> Iterator[None]:
        with self._memory.beside():
            yield
            self._settle()

    @property
    def blank(self) -> Set[Page]:
        return self._blank

    # Mapping

    def map(self, address: int, pages: Sequence[Page]) -> None:
        with self._opened() as table:
            table.check_map(address, pages)
            try:
                with refusing(f"mapping {len(pages)} pages at {address:#x}"):
                    self._map_runs(address, pages)
            except OutOfMemory:
                libc.fence_off(address, len(pages) * self.page_bytes)
                raise
            with self._lock:
                table.enter_map(address, pages)
            self._blank.difference_update(pages)

    def unmap(self, address: int, nbytes: int) -> None:
        with self._opened() as table:
            table.check_unmap(address, nbytes)
            with refusing(f"unmapping {nbytes} bytes at {address:#x}"):
                libc.unmap_file(address, nbytes)
            with self._lock:
                table.enter_unmap(address, nbytes)

    # Access

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        with self._opened() as table:
            table.check_fill(address, byte, nbytes)
        ctypes.memset(address, byte, nbytes)

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        with self._opened() as table:
            table.check_copy(dst, src, nbytes)
        ctypes.memmove(dst, src, nbytes)

    def pin(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        """Do nothing, also for memory that is `read_only`: copies run on threads and never block
        the caller.
        """

    def unpin(self, address: int) -> None:
        """Do nothing."""

    def tensor(self, address: int, nbytes: int) -> torch.Tensor:
        with self._opened() as table:
            table.check_reserved(address, nbytes)
        return host_tensor(address, nbytes)

    def stream(self) -> ThreadStream:
        return self._make_stream(self._stream_copy)

    def stream_at(self, bytes_per_s: float | None) -> ThreadStream:
        return self._make_stream(partial(self._copy_at, bytes_per_s))

    def _make_stream(self, copy: Callable[[int, int, int], None]) -> ThreadStream:
        with self._opened():
            stream = ThreadStream(copy, self._stream_fill, self._streams.discard)
            self._streams.add(stream)
            return stream

    def event(self) -> ThreadEvent:
        with self._opened():
            return ThreadEvent()

    # State

    def used_bytes(self) -> int:
        with self._opened():
            self._settle()
            return self._memory.used_bytes()

    def check_integrity(self) -> None:
        with self._opened() as table:
            table.check()
            expected = table.page_count * self.page_bytes
            if (used := self.used_bytes()) != expected:
                raise VmmError(
                    f"the device holds {used} bytes, {table.page_count} pages are {expected}"
                )

    def close(self) -> None:
        with self._changes:
            if self._closed:
                return
            self._closed = True
        for stream in list(self._streams):  # unlocked: their last work needs the page table
            stream.close()
        with self._changes:
            for address, nbytes in self._table.reservations:
                libc.free(address, nbytes)
            with suppress(OSError):  # what is being freed is this file's
                self._memory.settle()
            self._memory.close()

    # Inside

    @contextmanager
    def _opened(self) -> Iterator[PageTable]:
        with self._changes:
            if self._closed:
                raise DriverClosed("the driver was closed: its pages and addresses are gone")
            yield self._table

    def _check_capacity(self, count: int) -> None:
        held = self._table.page_count * self.page_bytes
        wanted = count * self.page_bytes
        if held + wanted > self.capacity_bytes:
            raise OutOfMemory(
                f"{wanted} bytes wanted, {held} of {self.capacity_bytes} in use: release some first"
            )

    def _settle(self) -> None:
        with refusing("releasing pages", DeviceError):
            self._memory.settle()

    def _aligned(self, nbytes: int) -> int:
        """Alignment in bytes of `nbytes` of memory, for its offset in the files and for its
        address.
        """
        best = self._memory.alignment(nbytes)
        return self.page_bytes if best % self.page_bytes else best

    def _place(self, run: Sequence[int]) -> tuple[int, int]:
        """Offset and size, in bytes, of the consecutive pages in `run`, in the row of offsets over
        all memory files."""
        return run[0] * self.page_bytes, len(run) * self.page_bytes

    def _map_runs(self, address: int, pages: Sequence[Page]) -> None:
        for run in runs(pages):
            offset, nbytes = self._place(run)
            self._memory.map(address, offset, nbytes)
            address += nbytes

    def _check_copy(self, dst: int, src: int, nbytes: int) -> None:
        with self._lock:
            self._table.check_copy(dst, src, nbytes)

    def _stream_fill(self, address: int, byte: int, nbytes: int) -> None:
        with self._lock:
            self._table.check_fill(address, byte, nbytes)
        ctypes.memset(address, byte, nbytes)

    def _stream_copy(self, dst: int, src: int, nbytes: int) -> None:
        """Copy on a stream's thread, at the speed of the imitated link if there is one."""
        self._copy_at(self._copy_bytes_per_s, dst, src, nbytes)

    def _copy_at(self, rate: float | None, dst: int, src: int, nbytes: int) -> None:
        self._check_copy(dst, src, nbytes)
        if rate is None:
            ctypes.memmove(dst, src, nbytes)
            return
        began, size = time.monotonic(), max(1, int(rate * SLICE_S))
        for done in range(0, nbytes, size):
            part = min(size, nbytes - done)
            time.sleep(max(0.0, began + (done + part) / rate - time.monotonic()))
            self._check_copy(dst + done, src + done, part)
            ctypes.memmove(dst + done, src + done, part)

    def _forget(self) -> None:
        """Close the driver in a forked child, so that the memory still ends with the parent."""
        # Another thread may have held them.
        self._changes, self._lock = threading.RLock(), threading.Lock()
        for stream in self._streams:
            stream.abandon()
        if self._closed:
            return
        self._closed = True
        for address, nbytes in self._table.reservations:
            libc.fence_off(address, nbytes)
        self._memory.close()


class HostBuffer:
    """Page-aligned, zeroed host memory that is not memory of a device.

    Master copies of parameters are kept in it. On a GPU this memory is pinned (`Driver.pin`), so
    that copies from it are asynchronous. Memory comes from NUMA node `node` while that node has
    some. Raises `Misaligned` unless the size is positive, and `OutOfMemory` if host memory or
    addresses are short.
    """

    def __init__(self, nbytes: int, node: int | None = None) -> None:
        if nbytes <= 0:
            raise Misaligned(f"a host buffer of {nbytes} bytes: a size is positive")
        with refusing(f"{nbytes} bytes of host memory"):
            self.address = libc.anonymous(nbytes)
            self.nbytes = nbytes
            libc.advise(self.address, nbytes, node)
            try:
                populate(self.address, nbytes)
            except OSError:
                self.close()
                raise

    def tensor(self) -> torch.Tensor:
        """The whole buffer as a flat uint8 tensor without a copy. Not to be used after `close`.
        Raises `DriverClosed` after it.
        """
        if self.nbytes == 0:
            raise DriverClosed("the host buffer was closed")
        return host_tensor(self.address, self.nbytes)

    def close(self) -> None:
        """Free the memory. Idempotent."""
        if self.nbytes:
            libc.free(self.address, self.nbytes)
            self.nbytes = 0


def host_buffer(nbytes: int, node: int | None = None) -> HostBuffer:
    """A new `HostBuffer` of `nbytes` bytes, from NUMA node `node` while that has memory; None for
    any. Raises `Misaligned` and `OutOfMemory` as `HostBuffer` does."""
    return HostBuffer(nbytes, node)


def host_tensor(address: int, nbytes: int) -> torch.Tensor:
    """Memory of this process as a flat uint8 tensor without a copy; it must stay mapped while in
    use.
    """
    import torch

    buffer = (ctypes.c_char * nbytes).from_address(address)
    return torch.frombuffer(buffer, dtype=torch.uint8)


@contextmanager
def refusing(what: str, named: type[VmmError] = OutOfMemory) -> Iterator[None]:
    """Turn an `OSError` inside into a `VmmError` of class `named` whose message begins with
    `what`.
    """
    try:
        yield
    except OSError as error:
        hint = ""
        if error.errno == errno.ENOMEM:
            hint = " (memory is short, or mappings reached vm.max_map_count)"
        raise named(f"{what}: {error.strerror}{hint}") from error


_drivers: weakref.WeakSet[HostDriver] = weakref.WeakSet()


def _forget_in_child() -> None:
    for driver in list(_drivers):
        with suppress(OSError):
            driver._forget()


os.register_at_fork(after_in_child=_forget_in_child)
