"""Messages between a device server that nobody is the parent of, and the agent that keeps it.

One message and its answer on each connection, by `mirage.wire`.
"""

from __future__ import annotations

from mirage.wire import Message


class TetherRenew(Message, frozen=True):
    """Keep the server for this many seconds from now; `TetherTold` answers."""

    lease_s: float


class TetherCall(Message, frozen=True):
    """A request of a controller at the socket for operators, which `TetherAnswer` answers."""

    epoch: int
    method: str
    path: str
    body: bytes


class TetherEnd(Message, frozen=True):
    """Drain and end; `TetherTold` or `TetherStale` answers."""

    epoch: int


class TetherTold(Message, frozen=True):
    """The server as it is now."""

    pid: int
    epoch: int
    left_s: float
    """Seconds until its lease is over."""
    url: str
    """Address at which it serves; empty until it has one."""
    is_ready: bool
    silent_s: float
    """Seconds since its event loop has given a sign of life, or its process if none runs yet."""


class TetherAnswer(Message, frozen=True):
    """Answer of the socket for operators."""

    status: int
    body: bytes


class TetherAway(Message, frozen=True):
    """The socket for operators does not answer."""

    why: str


class TetherStale(Message, frozen=True):
    """Refused: this epoch has begun."""

    epoch: int


ToTether = TetherRenew | TetherCall | TetherEnd
FromTether = TetherTold | TetherAnswer | TetherAway | TetherStale
