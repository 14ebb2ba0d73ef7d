"""One engine, two threads: how a control message reaches an engine between its steps.

The engine thread holds the engine while it schedules, executes and updates. The agent's
reader thread posts messages; whoever holds the engine next handles them. So a busy engine
acts on a message between two calls, and an idle one, whose thread sleeps in vLLM's input
queue, is acted upon by the reader thread itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mirage.protocol import ToEngine


class Mailbox:
    """Messages in order, and the lock that stands for "no call into the engine is running"."""

    __slots__ = ("_depth", "_engine", "_messages", "_read", "_wanted")

    def __init__(self) -> None:
        self._read: Callable[[ToEngine], None] | None = None
        self._messages: deque[ToEngine] = deque()
        self._engine = threading.Condition(threading.RLock())
        self._depth = 0
        self._wanted = False

    def read_by(self, reader: Callable[[ToEngine], None]) -> None:
        """`reader` acts on all messages; called once, before the first. Raises `ValueError`."""
        if self._read is not None:
            raise ValueError("this mailbox has a reader already")
        self._read = reader

    def post(self, message: ToEngine) -> None:
        """From the reader thread. Handles it here and now unless the engine is busy."""
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
        """The engine is busy inside. Messages are handled on entry and after leaving."""
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
        """True while a call into the engine runs. Another thread may ask."""
        return self._depth > 0

    @property
    def is_wanted(self) -> bool:
        """True while a call into the engine waits for another thread to let go of it.

        Any thread may ask.
        """
        return self._wanted

    def wait(self, seconds: float) -> None:
        """Inside `hold`: let go until a message was handled, at most `seconds`.

        One that was posted while the engine was busy here is handled first, at once.
        """
        if not self._drain():
            self._engine.wait(seconds)
            self._drain()

    def _drain(self) -> int:
        """Handle what has come; how many messages that was."""
        handled = 0
        while self._messages:
            assert self._read is not None, "a message without a reader"
            self._read(self._messages.popleft())
            handled += 1
        return handled
