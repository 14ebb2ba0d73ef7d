"""Orders from other threads to a thread that waits in a selector, which carries them out one after
the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue


class Orders:
    """Queue of orders, and the event that wakes its thread; once `open`, a selector takes it as a
    file."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()
        self._lock = threading.Lock()
        """Lock of `_queue` and `_bell`, so that no order comes after the end."""
        self._bell: int | None = None

    def open(self) -> None:
        """Take orders from now on. Raise `OSError` if no event can be made."""
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return a descriptor that is readable while there is something to `obey`. Raise
        `ValueError` if not open."""
        if self._bell is None:
            raise ValueError("orders are not open")
        return self._bell

    def give(self, what: Callable[[], None]) -> Future[None]:
        """Give an order, from any thread. If no orders are taken, the order is not carried out, and
        its future is done immediately.

        A `ValueError` that `what` raises becomes the future's; any other error ends the thread.
        """
        done: Future[None] = Future()
        with self._lock:
            if self._bell is None:
                done.set_result(None)
            else:
                self._queue.put((what, done))
                os.eventfd_write(self._bell, 1)
        return done

    def obey(self) -> None:
        """Carry out the orders. Errors other than `ValueError` are passed on."""
        os.eventfd_read(self.fileno())
        while not self._queue.empty():
            what, done = self._queue.get()
            awaited = done.set_running_or_notify_cancel()
            refused: ValueError | None = None
            try:
                what()
            except ValueError as error:
                refused = error
            finally:
                if awaited:
                    _end(done, refused)

    def close(self) -> None:
        """Take no more orders: those that were not carried out count as done. A second call does
        nothing."""
        with self._lock:
            bell, self._bell = self._bell, None
        if bell is not None:
            os.close(bell)
        while not self._queue.empty():
            _, done = self._queue.get()
            if done.set_running_or_notify_cancel():
                done.set_result(None)


def _end(done: Future[None], refused: ValueError | None) -> None:
    if refused is None:
        done.set_result(None)
    else:
        done.set_exception(refused)
