"""Messages to an engine that may not read just now: in their order, and never waited for."""

from __future__ import annotations

import os
import selectors
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from mirage.tiers.lending.messages import Any, say

MOST_UNREAD = 2**16
"""Messages that wait for an engine, before its line ends: more than there are pieces of memory."""


class Unread:
    """One engine's line, watched by `selector`, whose key has it as `data`.

    When it becomes writable, `flush`. A line that has broken is heard of when it is read.
    """

    def __init__(self, there: socket.socket, selector: selectors.BaseSelector) -> None:
        """Takes over the socket."""
        self.socket, self._selector = there, selector
        self._waiting: deque[tuple[Any, list[int]]] = deque()
        there.setblocking(False)
        selector.register(there, selectors.EVENT_READ, self)

    def say(self, message: Any, fds: Sequence[int] = ()) -> None:
        """The descriptors stay the caller's."""
        try:
            self._waiting.append((message, [os.dup(fd) for fd in fds]))
        except OSError:  # this process has none left
            self._end()
        self.flush()
        if len(self._waiting) > MOST_UNREAD:
            self._end()

    def flush(self) -> None:
        """Send what the engine has room for."""
        try:
            while self._waiting:
                say(self.socket, *self._waiting[0])
                self._drop_first()
        except BlockingIOError:
            pass
        except OSError:
            self._drop_all()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._waiting else 0)
        self._selector.modify(self.socket, events, self)

    def close(self) -> None:
        """Stop to watch the socket."""
        self._selector.unregister(self.socket)
        self.socket.close()
        self._drop_all()

    def _end(self) -> None:
        """Let its reader hear that the line has ended."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _drop_all(self) -> None:
        while self._waiting:
            self._drop_first()

    def _drop_first(self) -> None:
        for fd in self._waiting.popleft()[1]:
            os.close(fd)
