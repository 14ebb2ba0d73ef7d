"""Orders of other threads to the one that waits in a selector: done there, one after the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue


class Orders:
    """A queue and the event that wakes its thread; a selector takes it for a file, once `open`."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()
        self._lock = threading.Lock()
        """Around `_queue` and `_bell`: no order comes after the end."""
        self._bell: int | None = None

    def open(self) -> None:
        """Take orders from now on. Raises `OSError`."""
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Readable while there is something to `obey`. Raises `ValueError` if not open."""
        if self._bell is None:
            raise ValueError("orders are not open")
        return self._bell

    def give(self, what: Callable[[], None]) -> Future[None]:
        """From any thread. Done at once where nobody takes orders, not yet or no more.

        A `ValueError` that `what` raises is the future's; anything else ends the thread.
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
        """Do what was ordered. Raises what an order raises."""
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
        """Take no more orders: those that were not carried out count as done. Idempotent."""
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
