"""Mailbox between two threads of one engine: a control message reaches the engine between its
steps.

The engine thread holds the engine while it schedules, executes and updates. The agent's reader
thread posts messages; the thread that holds the engine next handles them. So a busy engine handles
a message between two calls. For an idle one, whose thread sleeps in vLLM's input queue, the reader
thread handles it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mirage.protocol import ToEngine


class Mailbox:
    """Messages in order, and the lock that a call into the engine holds."""

    __slots__ = ("_depth", "_engine", "_messages", "_read", "_wanted")

    def __init__(self) -> None:
        self._read: Callable[[ToEngine], None] | None = None
        self._messages: deque[ToEngine] = deque()
        self._engine = threading.Condition(threading.RLock())
        self._depth = 0
        self._wanted = False

    def read_by(self, reader: Callable[[ToEngine], None]) -> None:
        """Set the function that handles all messages; call it once, before the first. Raise
        `ValueError` the second time."""
        if self._read is not None:
            raise ValueError("this mailbox has a reader already")
        self._read = reader

    def post(self, message: ToEngine) -> None:
        """Post a message, from the reader thread. This thread handles it now, unless another one
        holds the engine."""
        self._messages.append(message)
        # Not taken: then the holder is inside `hold` and looks again after letting go.
        while self._messages and self._engine.acquire(blocking=False):
            try:
                self._drain()
                self._engine.notify_all()
            finally:
                self._engine.release()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Context in which this thread holds the engine: it waits on entry until no other thread
        does. Posted messages are handled on entry and after leaving."""
        self._wanted = True
        with self._engine:
            self._wanted = False
            self._depth += 1
            try:
                if self._depth == 1:
                    self._drain()
                yield
            finally:
                self._depth -= 1
        while self._depth == 0 and self._messages and self._engine.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._engine.release()

    @property
    def is_held(self) -> bool:
        """True while a call into the engine runs. Any thread may read it."""
        return self._depth > 0

    @property
    def is_wanted(self) -> bool:
        """True while a call into the engine waits for another thread to release the engine.

        Any thread may read it.
        """
        return self._wanted

    def wait(self, seconds: float) -> None:
        """Release the engine, inside `hold`, until a message was handled, at most for `seconds`.

        A message that was posted while the engine was busy is handled immediately.
        """
        if not self._drain():
            self._engine.wait(seconds)
            self._drain()

    def _drain(self) -> int:
        """Handle the posted messages; return their number."""
        handled = 0
        while self._messages:
            assert self._read is not None, "a message without a reader"
            self._read(self._messages.popleft())
            handled += 1
        return handled
