"""The side that reads layers: how copies wait for it, and it for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from typing import Protocol

from vmm.driver import Event, Stream


class Compute(Protocol):
    """The side that reads layers: the calling thread on a host, a stream on a GPU."""

    @property
    def stall_s(self) -> float:
        """Seconds for which compute has waited for copies, as far as known."""

    def record(self, event: Event) -> None:
        """Everything issued so far has run once `event` is reached."""

    def wait(self, event: Event) -> None:
        """Run nothing issued later before `event` is reached."""

    def step(self) -> AbstractContextManager[None]:
        """Around all that one step issues, for `wait_for_steps`."""

    def wait_for_steps(self) -> None:
        """Block until all steps have run. Other work, copies for one, may be under way."""

    def synchronize(self) -> None:
        """Block until everything issued so far has run."""


class StreamCompute:
    """Compute is enqueued on a stream: who enqueues it never waits for a copy.

    `current` is the stream that the calling thread enqueues on, `event` makes one; `synchronize`
    waits for the whole device, since what was enqueued may be on other streams too. Whoever asks
    from another thread than the one that steps means the stream of the steps: libraries have a
    current stream for each thread, and vLLM changes that of its own.
    """

    def __init__(
        self,
        current: Callable[[], Stream],
        synchronize: Callable[[], None],
        event: Callable[[], Event],
    ) -> None:
        self._current, self._synchronize = current, synchronize
        self._stepping: int | None = None
        """The thread that steps."""
        self._steps: Stream | None = None
        """Stream on which it enqueued its newest step."""
        self._end = event()
        self._ended = False
        """True if `_end` stands behind all that reads layers."""

    @property
    def stall_s(self) -> float:
        """Not measured here."""
        return 0.0

    def record(self, event: Event) -> None:
        """`event` is reached when the device has come this far."""
        self._stream().record(event)

    def wait(self, event: Event) -> None:
        """Enqueues a wait on the stream; does not block the host."""
        self._stream().wait_for(event)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Marks the end of the step on its stream. After one that failed there is no mark."""
        self._ended = False
        self._stepping, self._steps = get_ident(), self._current()
        yield
        self._steps = self._current()
        self.record(self._end)
        self._ended = True

    def wait_for_steps(self) -> None:
        """Up to the mark; for the device if there is none.

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
    """Compute happens in the calling thread, so what was issued has run already."""

    def __init__(self) -> None:
        self._stall_s = 0.0

    @property
    def stall_s(self) -> float:
        """Seconds that `wait` has blocked for."""
        return self._stall_s

    def record(self, event: Event) -> None:
        """Nothing to mark: a fresh event counts as reached."""

    def wait(self, event: Event) -> None:
        """Block until the copy is there; the time lost is a stall."""
        if event.reached():
            return
        start = time.perf_counter()
        event.wait()
        self._stall_s += time.perf_counter() - start

    def step(self) -> AbstractContextManager[None]:
        """Nothing to mark."""
        return nullcontext()

    def wait_for_steps(self) -> None:
        """They have run."""

    def synchronize(self) -> None:
        """Nothing is under way."""
