"""Engines that page-lock slabs of the host pool for their devices: each has a connection for that
alone, its line.

The messages are `Want`, `Here`, `Gone`, `Drop` and `Dropped` of `lending.messages`. The line is
separate because a thread of the engine reads it: an engine at rest reads nothing else, and has to
unlock memory all the same.
"""

from __future__ import annotations

import selectors
import socket

from mirage.tiers.core import Core
from mirage.tiers.lending.messages import Drop, Dropped, FromEngine, Gone, Here, Want
from mirage.wire import Broken, Channel

Line = Channel[FromEngine]


class Lockers:
    """Slabs that engines have page-locked. Used by the pool's thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._selector = selectors.DefaultSelector()
        self._tenants: dict[Line, str] = {}
        """Tenant of each engine's connection (line)."""
        self._having: dict[int, set[Line]] = {}
        """Connections of the engines that have a slab page-locked, by the offset in bytes at which
        the slab begins."""

    def admit(self, tenant: str) -> socket.socket:
        """Make a connection (a line), and return the engine's end of it, which the caller closes in
        this process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._tenants[Channel(ours, FromEngine, selector=self._selector)] = tenant
        return theirs

    def unlock(self, start: int) -> None:
        """Tell engines to unlock the slab that begins at byte `start`. The core is told when no
        engine has it page-locked any more."""
        for line in self._having.get(start, ()):
            line.tell(Drop(start))

    def dead(self, tenant: str) -> None:
        """Forget the locks of a tenant's engine: all its processes have ended."""
        for line in [line for line, whose in self._tenants.items() if whose == tenant]:
            self._dismiss(line)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to `attend` to."""
        return self._selector.fileno()

    def attend(self) -> None:
        """Handle the messages of each engine. Never waits."""
        for key, events in self._selector.select(0):
            line: Line = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    line.flush()
                line.read()
                while (heard := line.next()) is not None:
                    self._hear(line, heard[0])
            except Broken:
                self._dismiss(line)

    def close(self) -> None:
        """Close the lines to all engines, which then end their side."""
        for line in self._tenants:
            line.close()
        self._tenants.clear()
        self._having.clear()
        self._selector.close()

    def _hear(self, line: Line, message: FromEngine) -> None:
        match message:
            case Want(offset):
                self._give(line, offset)
            case Dropped(start):
                self._let_go(line, start)

    def _give(self, line: Line, offset: int) -> None:
        slab = self._core.lock(offset)
        if slab is None:
            line.tell(Gone(offset))
            return
        self._having.setdefault(slab.offset, set()).add(line)
        line.tell(Here(slab.offset, slab.nbytes))

    def _let_go(self, line: Line, start: int) -> None:
        having = self._having.get(start, set())
        having.discard(line)
        if not having and self._having.pop(start, None) is not None:
            self._core.unlocked(start)

    def _dismiss(self, line: Line) -> None:
        """Forget a line that has ended, or whose engine broke the protocol, and its locks."""
        del self._tenants[line]
        line.close()
        for start in list(self._having):
            self._let_go(line, start)
