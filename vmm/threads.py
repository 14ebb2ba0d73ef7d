"""Streams and events of the host driver: a stream is a thread that works through a queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from vmm.driver import DriverClosed, Event, Stream, VmmError

Work = Callable[[], None]


class _Mark:
    """One recording of an event. It is reached once, possibly with the error of the stream's
    work.
    """

    def __init__(self) -> None:
        self._passed = threading.Event()
        self._error: Exception | None = None

    def reach(self, error: Exception | None) -> None:
        self._error = error
        self._passed.set()

    def reached(self) -> bool:
        return self._passed.is_set() and self.wait()

    def wait(self) -> bool:
        self._passed.wait()
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error
        return True


class ThreadEvent(Event):
    """An event of a `ThreadStream`. A wait is for the newest recording at the moment of the call
    (`wait`, or `ThreadStream.wait_for`), as with CUDA. An event without a recording counts as
    reached.

    `reached` re-raises an error of the stream's work, as `wait` does, so that a failed copy is not
    mistaken for a finished one.
    """

    def __init__(self) -> None:
        self._mark = _Mark()
        self._mark.reach(None)

    def reached(self) -> bool:
        return self._mark.reached()

    def wait(self) -> None:
        self._mark.wait()


class ThreadStream(Stream):
    """A stream that is one daemon thread. After a failure the rest of its work is skipped, and
    every later event, `synchronize` and waiting stream re-raises the error.

    `copy` and `fill` do the work on the thread; `closed` is called when the stream is closed.
    """

    def __init__(
        self,
        copy: Callable[[int, int, int], None],
        fill: Callable[[int, int, int], None],
        closed: Callable[[ThreadStream], None],
    ) -> None:
        self._copy, self._fill, self._tell_closed = copy, fill, closed
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._open = True
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="vmm-stream", daemon=True)
        self._thread.start()

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        self._enqueue(partial(self._try, partial(self._copy, dst, src, nbytes)))

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        self._enqueue(partial(self._try, partial(self._fill, address, byte, nbytes)))

    def record(self, event: Event) -> None:
        event, mark = _ours(event), _Mark()
        self._enqueue(lambda: mark.reach(self._error))
        event._mark = mark

    def wait_for(self, event: Event) -> None:
        mark = _ours(event)._mark
        self._enqueue(partial(self._try, mark.wait))

    def synchronize(self) -> None:
        event = ThreadEvent()
        self.record(event)
        event.wait()

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                self._queue.put(None)
        self._thread.join()
        self._tell_closed(self)

    def abandon(self) -> None:
        """Refuse further work without waiting: for a forked child, which does not have the
        thread.
        """
        self._lock = threading.Lock()
        self._open = False

    def _enqueue(self, work: Work) -> None:
        with self._lock:
            if not self._open:
                raise DriverClosed("the stream was closed: open another one")
            self._queue.put(work)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()

    def _try(self, work: Callable[[], object]) -> None:
        if self._error is not None:
            return
        try:
            work()
        except Exception as error:
            self._error = error


def _ours(event: Event) -> ThreadEvent:
    if not isinstance(event, ThreadEvent):
        raise VmmError(f"a {type(event).__name__} is no event of this driver: use driver.event()")
    return event
