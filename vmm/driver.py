"""The backend contract: physical pages, reserved addresses and the mapping between them.

Two drivers implement it: `vmm.host` (memfd and mmap, runs anywhere) and `vmm.cuda` (a GPU, through
cuda-python). `vmm` knows nothing of models. Addresses are integers, sizes bytes; every size
and address handed to `reserve`, `map` and `unmap` is a multiple of `page_bytes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    import torch

Page = NewType("Page", int)
"""One physical page of `Driver.page_bytes`; it may be mapped at several addresses."""


class VmmError(Exception):
    """A memory operation was refused; nothing was changed, unless the operation says otherwise."""


class Misaligned(VmmError):
    """An address or a size is not a multiple of the page, a size is not positive, or a count is
    negative.
    """


class NotReserved(VmmError):
    """An address range does not lie inside one reservation."""


class AlreadyMapped(VmmError):
    """A page is mapped already in the address range, or an extent is named twice in one call."""


class NotMapped(VmmError):
    """The address range is not mapped, or not all of it."""


class StillMapped(VmmError):
    """A page or a reservation cannot be given back while a mapping of it exists."""


class UnknownPage(VmmError):
    """The driver never created the page, or it was released; or a page that is given back is not in
    use, or is named twice in one call.
    """


class OutOfMemory(VmmError):
    """There is no memory for another page or buffer, or no room for more addresses."""


class GrantExceeded(VmmError):
    """The process would hold more memory than it was granted."""


class DriverClosed(VmmError):
    """The driver, or the stream or buffer that is used, was closed."""


class DeviceError(VmmError):
    """The device refused a call that passed all checks of ours."""


class DeviceUnavailable(DeviceError):
    """There is no usable device: it is absent, has no driver, or lacks virtual memory
    management.
    """


class DeviceLost(DeviceError):
    """Work failed on the device, and this process cannot use it any more."""


class Event(ABC):
    """A point in a stream. An event that was never recorded counts as reached."""

    @abstractmethod
    def reached(self) -> bool:
        """True once all work that was enqueued before the last `Stream.record` of this event has
        completed. Re-raises an error of that work.
        """

    @abstractmethod
    def wait(self) -> None:
        """Block the calling thread until the event is reached. Re-raises an error of the stream's
        work.
        """


class Stream(ABC):
    """A queue of work that runs in order, concurrently with the calling thread."""

    @abstractmethod
    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Enqueue a copy of `nbytes` from address `src` to address `dst`."""

    def together(self) -> AbstractContextManager[object]:
        """Context for several calls of this thread that enqueue work on the stream: they share
        their fixed cost. Calls that block are not allowed inside.
        """
        return nullcontext()

    @abstractmethod
    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Enqueue setting the `nbytes` bytes from `address` on to `byte`."""

    @abstractmethod
    def record(self, event: Event) -> None:
        """Mark this point: `event` is unreached from now until the stream passes it."""

    @abstractmethod
    def wait_for(self, event: Event) -> None:
        """Make work that is enqueued on this stream later wait for `event`, without blocking the
        caller.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Block until everything enqueued has completed. Re-raises an error of that work."""

    @abstractmethod
    def close(self) -> None:
        """Complete what is enqueued and free the stream. Idempotent."""


class Driver(ABC):
    """Physical pages of one size, and reserved address ranges that they are mapped into.

    A refused call raises a subclass of `VmmError` with the values in its message, and changes
    nothing.
    """

    page_bytes: int
    host_node: int | None = None
    """NUMA node whose host memory is best for copies to the device; None if unknown."""
    locks_memory = False
    """True if `pin` keeps the physical pages of host memory until `unpin`, even if their mapping is
    replaced or their part of a file is freed (a hole is punched) meanwhile.
    """

    @abstractmethod
    def reserve(self, nbytes: int) -> int:
        """Reserve addresses without memory: touching them faults. Returns the first address."""

    @abstractmethod
    def unreserve(self, address: int) -> None:
        """Give back the whole reservation that begins at `address`. Raises `NotReserved` if none
        begins there, and `StillMapped` if a page is mapped in it.
        """

    @abstractmethod
    def create(self, count: int) -> list[Page]:
        """`count` new pages, all or none, with undefined contents. Raises `OutOfMemory` if the
        device has not enough memory.
        """

    @abstractmethod
    def create_most(self, count: int) -> list[Page]:
        """Create `count` pages, or fewer, possibly none, if memory is short."""

    @abstractmethod
    def release(self, pages: Sequence[Page]) -> None:
        """Return pages to the device. Raises `StillMapped` if one of them is mapped, `UnknownPage`
        if one does not exist or is named twice, and `DeviceError` if the device or the kernel
        refuses.
        """

    @property
    def blank(self) -> Set[Page]:
        """Pages that are known to hold zeros. A page that was mapped since it was created is not
        among them.
        """
        return frozenset()

    def releasing(self) -> AbstractContextManager[None]:
        """Context inside of which `release` may return before the memory is free; when the context
        ends, the memory of all releases is free.

        The capacity still holds: `create` waits for the releases before it. Both `create` and the
        end of the context raise `DeviceError` if a release has failed: its memory is lost.
        """
        return nullcontext()

    @abstractmethod
    def map(self, address: int, pages: Sequence[Page]) -> None:
        """Map `pages` at consecutive addresses from `address`, all or none.

        Raises `Misaligned`, `NotReserved` unless the addresses lie in one reservation,
        `AlreadyMapped` if any of them is mapped, and `UnknownPage` if a page does not exist.
        """

    @abstractmethod
    def unmap(self, address: int, nbytes: int) -> None:
        """Unmap the addresses; they stay reserved. Raises `NotMapped` if any of them is not
        mapped.
        """

    @abstractmethod
    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Set `nbytes` bytes of mapped memory to `byte` and wait until it is done. Raises
        `NotMapped` if any of them is not mapped.
        """

    def fill_all(self, places: Sequence[tuple[int, int]], byte: int) -> None:
        """Fill several (address, nbytes) as `fill` does; a driver may wait once for all of them."""
        for address, nbytes in places:
            self.fill(address, byte, nbytes)

    @abstractmethod
    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Copy between mapped memory of the device and host memory, or within either of them, and
        wait until the copy is done.
        """

    @abstractmethod
    def pin(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        """Lock host memory until `unpin`, so that copies with it do not block the thread that
        enqueues them.

        Set `read_only` for memory that this process cannot write to: it can then only be a copy's
        source. Raises `DeviceError` if it cannot be locked.
        """

    @abstractmethod
    def unpin(self, address: int) -> None:
        """Undo `pin`. No copy from or to the memory may be under way."""

    @abstractmethod
    def stream(self) -> Stream:
        """A new stream; `close` of the driver closes it too."""

    def stream_at(self, bytes_per_s: float | None) -> Stream:
        """A new stream for copies over another link than the device's. The host driver imitates a
        link of `bytes_per_s`, None for full speed; other drivers ignore it.
        """
        return self.stream()

    @abstractmethod
    def event(self) -> Event:
        """A new event, which counts as reached until it is recorded."""

    @abstractmethod
    def tensor(self, address: int, nbytes: int) -> torch.Tensor:
        """Memory at `address` as a flat uint8 tensor without a copy. The caller keeps it mapped
        while in use.
        """

    @abstractmethod
    def used_bytes(self) -> int:
        """Bytes of physical memory of this driver's pages; the host driver returns the kernel's
        count, not its own."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise `VmmError` if the driver's page table is inconsistent, in itself or with the memory
        that the driver holds.
        """

    @abstractmethod
    def close(self) -> None:
        """Unmap and release everything and end all streams. Idempotent."""
