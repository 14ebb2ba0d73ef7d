"""Compute side of streaming: it reads layers, waits for copies, and lets copies wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from typing import Protocol

from vmm.driver import Event, Stream


class Compute(Protocol):
    """Compute side that reads layers: the calling thread on a host, a stream on a GPU."""

    @property
    def stall_s(self) -> float:
        """Seconds for which compute has waited for copies, as far as they are measured."""

    def record(self, event: Event) -> None:
        """Mark this moment: `event` is reached once everything issued so far has run."""

    def wait(self, event: Event) -> None:
        """Let everything that is issued later wait until `event` is reached."""

    def step(self) -> AbstractContextManager[None]:
        """Return a context manager around everything that one step issues, for `wait_for_steps`."""

    def wait_for_steps(self) -> None:
        """Block until all steps have run. Other work, such as copies, may still be in progress."""

    def synchronize(self) -> None:
        """Block until everything issued so far has run."""


class StreamCompute:
    """Compute that is enqueued on a stream: the thread that enqueues never waits for a copy.

    `current` returns the stream that the calling thread enqueues on, `event` makes an event;
    `synchronize` waits for the whole device, since work may be on other streams too. A call from
    another thread than the one that steps refers to the stream of the steps: libraries have a
    current stream for each thread, and vLLM changes its own thread's.
    """

    def __init__(
        self,
        current: Callable[[], Stream],
        synchronize: Callable[[], None],
        event: Callable[[], Event],
    ) -> None:
        self._current, self._synchronize = current, synchronize
        self._stepping: int | None = None
        """Identifier of the thread that steps; None before the first step."""
        self._steps: Stream | None = None
        """Stream on which the thread that steps enqueued its newest step."""
        self._end = event()
        self._ended = False
        """True if `_end` was recorded after everything that reads layers."""

    @property
    def stall_s(self) -> float:
        """0: waits are not measured here."""
        return 0.0

    def record(self, event: Event) -> None:
        """Record `event` on the stream: it is reached when the device has come this far."""
        self._stream().record(event)

    def wait(self, event: Event) -> None:
        """Enqueue a wait for `event` on the stream; the host does not block."""
        self._stream().wait_for(event)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Context of one step. An event on the step's stream marks its end, for `wait_for_steps`.
        A step that fails leaves no mark.
        """
        self._ended = False
        self._stepping, self._steps = get_ident(), self._current()
        yield
        self._steps = self._current()
        self.record(self._end)
        self._ended = True

    def wait_for_steps(self) -> None:
        """Block up to the mark of the newest step; if there is none, until the device has done
        everything.

        All steps run on one stream, so the end of the newest is the end of all.
        """
        if self._ended:
            self._end.wait()
        else:
            self.synchronize()

    def _stream(self) -> Stream:
        if self._steps is None or self._stepping == get_ident():
            return self._current()
        return self._steps

    def synchronize(self) -> None:
        """Block until the device has done everything."""
        self._synchronize()


class HostCompute:
    """Compute in the calling thread: everything that was issued has already run."""

    def __init__(self) -> None:
        self._stall_s = 0.0

    @property
    def stall_s(self) -> float:
        """Seconds for which `wait` has blocked."""
        return self._stall_s

    def record(self, event: Event) -> None:
        """Do nothing: a fresh event counts as reached."""

    def wait(self, event: Event) -> None:
        """Block until `event` is reached, such as the end of a copy; the seconds are added to
        `stall_s`."""
        if event.reached():
            return
        start = time.perf_counter()
        event.wait()
        self._stall_s += time.perf_counter() - start

    def step(self) -> AbstractContextManager[None]:
        """Return an empty context manager: there is nothing to mark."""
        return nullcontext()

    def wait_for_steps(self) -> None:
        """Return immediately: all steps have run."""

    def synchronize(self) -> None:
        """Return immediately: no work is in progress."""
