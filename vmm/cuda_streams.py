"""Streams and events of the CUDA driver. Calls that enqueue work return at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from cuda.bindings import driver as cu

from vmm.cuda_calls import Code, answer, call, refusal
from vmm.driver import DriverClosed, Event, Stream, VmmError
from vmm.page_table import PageTable


class Door(Protocol):
    """The part of a driver that its streams and events call."""

    def opened(self) -> AbstractContextManager[PageTable]:
        """Page table, with the driver's lock held and its context current in this thread. Raises
        `DriverClosed` if the driver was closed.
        """

    def entered(self) -> AbstractContextManager[None]:
        """Make the context current without the lock, for calls that block. Raises `DriverClosed` if
        the driver was closed.
        """


class CudaEvent(Event):
    """An event without timing. When it is deleted, its CUDA handle is kept for a later event."""

    def __init__(self, door: Door, spent: list[Any]) -> None:
        self._door, self._spent = door, spent
        self.handle = _fresh(spent)

    def reached(self) -> bool:
        with self._door.opened():
            return _is_reached(self.handle)

    def wait(self) -> None:
        with self._door.entered():
            call(cu.cuEventSynchronize, self.handle)

    def __del__(self) -> None:
        with suppress(AttributeError):  # of one that was never made
            self._spent.append(self.handle)


def _is_reached(handle: Any) -> bool:
    (code,) = answer(cu.cuEventQuery, handle)
    if code and code != Code.CUDA_ERROR_NOT_READY:
        raise refusal("cuEventQuery", (handle,), code)
    return not code


def _fresh(spent: list[Any]) -> Any:
    """Handle of an event that counts as reached: one of `spent` that was reached, or a new one."""
    for position, handle in enumerate(spent):
        if _is_reached(handle):
            return spent.pop(position)
    return call(cu.cuEventCreate, cu.CUevent_flags.CU_EVENT_DISABLE_TIMING)


class CudaStream(Stream):
    """A stream of work on the device, in order. After a failure of the device every call raises it.

    `handle` is CUDA's; with `owned` false it was made elsewhere and is not destroyed. Memory named
    in a call must stay mapped, or registered, until the work has run.
    """

    def __init__(
        self,
        door: Door,
        handle: Any,
        closed: Callable[[CudaStream], None],
        owned: bool = True,
    ) -> None:
        self._door, self.handle = door, handle
        self._tell_closed, self._owned = closed, owned
        self._open = True

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        with self.enqueuing() as table:
            table.check_copy(dst, src, nbytes)
            call(cu.cuMemcpyAsync, dst, src, nbytes, self.handle)

    def together(self) -> AbstractContextManager[object]:
        """Context that takes the lock and sets the context once for all calls inside. Raises
        `DriverClosed` if the stream or the driver was closed.
        """
        return self.enqueuing()

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        with self.enqueuing() as table:
            table.check_fill(address, byte, nbytes)
            call(cu.cuMemsetD8Async, address, byte, nbytes, self.handle)

    def record(self, event: Event) -> None:
        with self.enqueuing():
            call(cu.cuEventRecord, _ours(event).handle, self.handle)

    def wait_for(self, event: Event) -> None:
        with self.enqueuing():
            call(cu.cuStreamWaitEvent, self.handle, _ours(event).handle, 0)

    def synchronize(self) -> None:
        self._check_open()
        with self._door.entered():
            call(cu.cuStreamSynchronize, self.handle)

    def close(self) -> None:
        if not self._open:
            return
        with suppress(DriverClosed):
            self.synchronize()
            if self._owned:
                with self._door.opened():
                    call(cu.cuStreamDestroy, self.handle)
        self._open = False
        self._tell_closed(self)

    def enqueuing(self) -> AbstractContextManager[PageTable]:
        """Page table, with lock and context for a call that uses `handle`. Raises `DriverClosed` if
        the stream or the driver was closed.
        """
        self._check_open()
        return self._door.opened()

    def _check_open(self) -> None:
        if not self._open:
            raise DriverClosed("the stream was closed: open another one")


def _ours(event: Event) -> CudaEvent:
    if not isinstance(event, CudaEvent):
        raise VmmError(f"a {type(event).__name__} is no event of this driver: use driver.event()")
    return event
