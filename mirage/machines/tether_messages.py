"""Messages between a device server without a parent process and the agent that keeps it.

Each connection carries one message and its answer, in the form of `mirage.wire`.
"""

from __future__ import annotations

from mirage.wire import Message


class TetherRenew(Message, frozen=True):
    """Keep the server for this many seconds from now; `TetherTold` answers."""

    lease_s: float


class TetherCall(Message, frozen=True):
    """A controller's request to the socket for operators; the answer is `TetherAnswer`,
    `TetherAway` or `TetherStale`.
    """

    epoch: int
    method: str
    path: str
    body: bytes


class TetherEnd(Message, frozen=True):
    """Drain and end; `TetherTold` or `TetherStale` answers."""

    epoch: int


class TetherTold(Message, frozen=True):
    """Answer to a message of the tether: the state of the device's server."""

    pid: int
    epoch: int
    left_s: float
    """Seconds until the lease ends."""
    url: str
    """Address at which it serves; empty until it has one."""
    is_ready: bool
    silent_s: float
    """Seconds since the last sign of life: of the event loop, or before it runs of the process."""


class TetherAnswer(Message, frozen=True):
    """Answer of the socket for operators."""

    status: int
    body: bytes


class TetherAway(Message, frozen=True):
    """The socket for operators does not answer."""

    why: str


class TetherStale(Message, frozen=True):
    """The message was refused, because a newer epoch has begun: `epoch`."""

    epoch: int


ToTether = TetherRenew | TetherCall | TetherEnd
FromTether = TetherTold | TetherAnswer | TetherAway | TetherStale
