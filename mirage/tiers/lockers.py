"""Engines that lock slabs of the host pool for their devices: a line to each, for that alone.

What is said there is `Want`, `Here`, `Gone`, `Drop` and `Dropped` of `lending.messages`. A line of
its own, which a thread of the engine reads: an engine at rest reads nothing else, and has to let go
of memory all the same.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque
from contextlib import suppress

from mirage.tiers.core import Core
from mirage.tiers.lending.messages import Any, Drop, Dropped, Ended, Gone, Here, Want, hear, say

MOST_UNSAID = 2**16
"""Messages that wait for an engine to read them, before its line ends: more than it has slabs."""


class _Line:
    """To one engine, never waited for. `unsaid` is what it has not read yet."""

    def __init__(self, tenant: str, there: socket.socket) -> None:
        self.tenant, self.socket = tenant, there
        self.unsaid: deque[Any] = deque()


class Lockers:
    """Which engine has which slab locked. Used by the pool's thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._selector = selectors.DefaultSelector()
        self._lines: set[_Line] = set()
        self._having: dict[int, set[_Line]] = {}
        """By the first offset of a slab."""

    def admit(self, tenant: str) -> socket.socket:
        """An engine's end of a new line; the caller closes it here."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        line = _Line(tenant, ours)
        self._lines.add(line)
        self._selector.register(ours, selectors.EVENT_READ, line)
        return theirs

    def unlock(self, start: int) -> None:
        """Nobody may have a slab locked any longer; the core hears when nobody has."""
        for line in list(self._having.get(start, ())):
            self._say(line, Drop(start))

    def dead(self, tenant: str) -> None:
        """All processes of a tenant's engine have ended."""
        for line in [line for line in self._lines if line.tenant == tenant]:
            self._dismiss(line)

    def fileno(self) -> int:
        """Readable when there is something to `attend` to."""
        return self._selector.fileno()

    def attend(self) -> None:
        """One message of each engine that says something. Never waits."""
        for key, events in self._selector.select(0):
            line: _Line = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(line)
            if events & selectors.EVENT_READ and line in self._lines:
                self._hear(line)

    def close(self) -> None:
        """Engines end their lines then."""
        for line in self._lines:
            line.socket.close()
        self._lines.clear()
        self._having.clear()
        self._selector.close()

    def _hear(self, line: _Line) -> None:
        try:
            message, fds = hear(line.socket)
        except BlockingIOError:
            return
        except Ended:
            self._dismiss(line)
            return
        for fd in fds:
            socket.close(fd)
        match message:
            case Want(int() as offset):
                self._give(line, offset)
            case Dropped(int() as start):
                self._let_go(line, start)
            case _:
                self._dismiss(line)

    def _give(self, line: _Line, offset: int) -> None:
        slab = self._core.lock(offset)
        if slab is None:
            self._say(line, Gone(offset))
            return
        self._having.setdefault(slab.offset, set()).add(line)
        self._say(line, Here(slab.offset, slab.nbytes))

    def _let_go(self, line: _Line, start: int) -> None:
        having = self._having.get(start, set())
        having.discard(line)
        if not having and self._having.pop(start, None) is not None:
            self._core.unlocked(start)

    def _dismiss(self, line: _Line) -> None:
        """It has ended, and its device has nothing locked; or it ends what it has now."""
        self._lines.discard(line)
        with suppress(KeyError):
            self._selector.unregister(line.socket)
        line.socket.close()
        for start in list(self._having):
            self._let_go(line, start)

    def _say(self, line: _Line, message: Any) -> None:
        line.unsaid.append(message)
        self._flush(line)
        if len(line.unsaid) > MOST_UNSAID:
            with suppress(OSError):
                line.socket.shutdown(socket.SHUT_RDWR)

    def _flush(self, line: _Line) -> None:
        """A line whose engine has gone is heard of by `attend`."""
        try:
            while line.unsaid:
                say(line.socket, line.unsaid[0])
                line.unsaid.popleft()
        except BlockingIOError:
            pass
        except OSError:
            line.unsaid.clear()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.unsaid else 0)
        self._selector.modify(line.socket, events, line)
