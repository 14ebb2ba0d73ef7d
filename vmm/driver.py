"""The backend contract: physical pages, reserved addresses and the mapping between them.

Two drivers keep it: `vmm.host` (memfd and mmap, runs anywhere) and `vmm.cuda` (a GPU, through
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
"""One physical page of `Driver.page_bytes`; may be mapped at several addresses at once."""


class VmmError(Exception):
    """A refused memory operation; nothing was changed."""


class Misaligned(VmmError):
    """An address or a size is not a multiple of the page, or is not positive."""


class NotReserved(VmmError):
    """An address range does not lie inside one reservation."""


class AlreadyMapped(VmmError):
    """Something is mapped there already."""


class NotMapped(VmmError):
    """Nothing, or not everything, is mapped there."""


class StillMapped(VmmError):
    """A page or a reservation is given back while a mapping of it exists."""


class UnknownPage(VmmError):
    """A page that this driver never created, or that was released."""


class OutOfMemory(VmmError):
    """The device has no memory for another page."""


class GrantExceeded(VmmError):
    """The process would hold more than it was granted."""


class DriverClosed(VmmError):
    """The driver was closed."""


class DeviceError(VmmError):
    """The device refused a call that was in order as far as we can tell."""


class DeviceUnavailable(DeviceError):
    """No usable device: none is there, it has no driver, or it cannot map virtual memory."""


class DeviceLost(DeviceError):
    """Work failed on the device; nothing can be done with it any more in this process."""


class Event(ABC):
    """A point in a stream. Fresh events count as reached."""

    @abstractmethod
    def reached(self) -> bool:
        """True once everything that was enqueued before the last `Stream.record` has completed."""

    @abstractmethod
    def wait(self) -> None:
        """Block the calling thread until reached. Re-raises an error of the stream's work."""


class Stream(ABC):
    """Work in order, beside the calling thread."""

    @abstractmethod
    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Enqueue a copy of `nbytes` from address `src` to address `dst`."""

    def together(self) -> AbstractContextManager[object]:
        """Context in which calls of this thread share what each costs alone. None may block."""
        return nullcontext()

    @abstractmethod
    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Enqueue setting `nbytes` bytes to `byte`."""

    @abstractmethod
    def record(self, event: Event) -> None:
        """Mark this point: `event` is unreached from now until the stream passes it."""

    @abstractmethod
    def wait_for(self, event: Event) -> None:
        """Make work enqueued later wait for `event`, without blocking the caller."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block until everything enqueued has completed."""

    @abstractmethod
    def close(self) -> None:
        """Complete what is enqueued and free the stream. Idempotent."""


class Driver(ABC):
    """Physical pages of one size, and address ranges that they are mapped into.

    A refused call raises a named `VmmError` with the values in it and changes nothing.
    """

    page_bytes: int
    host_node: int | None = None
    """The NUMA node of host memory that copies to the device are best read from, if known."""
    locks_memory = False
    """True if `pin` holds pages of host memory, whatever is mapped or punched there later."""

    @abstractmethod
    def reserve(self, nbytes: int) -> int:
        """Reserve addresses, backed by nothing: touching them faults. Returns the first."""

    @abstractmethod
    def unreserve(self, address: int) -> None:
        """Give a whole reservation back. Raises `StillMapped`, `NotReserved`."""

    @abstractmethod
    def create(self, count: int) -> list[Page]:
        """`count` new pages, all or none. What is in them may be anything. Raises `OutOfMemory`."""

    @abstractmethod
    def create_most(self, count: int) -> list[Page]:
        """Pages as of `create`, but as many of `count` as the device has, none perhaps."""

    @abstractmethod
    def release(self, pages: Sequence[Page]) -> None:
        """Return pages to the device. Raises `StillMapped`, `UnknownPage`, `DeviceError`."""

    @property
    def blank(self) -> Set[Page]:
        """Pages of which it is known that they hold zeros. One that is mapped may hold anything."""
        return frozenset()

    def releasing(self) -> AbstractContextManager[None]:
        """Inside, a release may go on beside what follows it; at the end its memory is free.

        What exists is bounded all the same, by `create`, which waits for releases before it. Both
        raise `DeviceError` if one has failed: its memory is free for nobody.
        """
        return nullcontext()

    @abstractmethod
    def map(self, address: int, pages: Sequence[Page]) -> None:
        """Back consecutive addresses by `pages`. All or none.

        Raises `Misaligned`, `NotReserved`, `AlreadyMapped`, `UnknownPage`.
        """

    @abstractmethod
    def unmap(self, address: int, nbytes: int) -> None:
        """Leave the addresses reserved but unbacked. Raises `NotMapped` if any is not mapped."""

    @abstractmethod
    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Set mapped memory to `byte` and wait for it. Raises `NotMapped`."""

    def fill_all(self, places: Sequence[tuple[int, int]], byte: int) -> None:
        """Fill several (address, nbytes) as `fill` does, with one wait at the end if it can."""
        for address, nbytes in places:
            self.fill(address, byte, nbytes)

    @abstractmethod
    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Copy between mapped or host memory and wait for it."""

    @abstractmethod
    def pin(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        """Lock host memory until `unpin`, for copies that do not hold up who enqueues them.

        `read_only` of memory that this process cannot write to: it is copied from alone.
        Raises `DeviceError` if it cannot be locked.
        """

    @abstractmethod
    def unpin(self, address: int) -> None:
        """Undo `pin`, with no copy from or to it under way."""

    @abstractmethod
    def stream(self) -> Stream:
        """A new stream, closed with the driver at the latest."""

    def stream_at(self, bytes_per_s: float | None) -> Stream:
        """As `stream`, for copies over another link; a host imitates that one's pace."""
        return self.stream()

    @abstractmethod
    def event(self) -> Event:
        """A new event, reached until it is recorded."""

    @abstractmethod
    def tensor(self, address: int, nbytes: int) -> torch.Tensor:
        """The addresses as a flat uint8 tensor, no copy. The caller keeps them mapped in use."""

    @abstractmethod
    def used_bytes(self) -> int:
        """Physical memory in use, as the device itself tells."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise `VmmError` if the driver's own page table do not add up."""

    @abstractmethod
    def close(self) -> None:
        """Unmap and release everything and end all streams. Idempotent."""
