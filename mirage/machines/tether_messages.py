"""Messages between a device server without a parent process and the agent that keeps it.

Each connection carries one message and its answer, in the form of `mirage.wire`.
"""

from __future__ import annotations

from mirage.wire import Message


class TetherRenew(Message, frozen=True):
    """Agent to device server: run for at least `lease_s` seconds from now; `TetherTold` answers."""

    lease_s: float


class TetherCall(Message, frozen=True):
    """Agent to device server: a controller's request to the server's admin socket; the answer is
    `TetherAnswer`, `TetherAway` or `TetherStale`.
    """

    epoch: int
    method: str
    path: str
    body: bytes


class TetherEnd(Message, frozen=True):
    """Agent to device server: drain and end; `TetherTold` or `TetherStale` answers."""

    epoch: int


class TetherTold(Message, frozen=True):
    """Device server to agent: its state, in answer to a renewal or to the order to end."""

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
    """Device server to agent: answer of the server's admin socket."""

    status: int
    body: bytes


class TetherAway(Message, frozen=True):
    """Device server to agent: its admin socket does not answer, for the reason `why`."""

    why: str


class TetherStale(Message, frozen=True):
    """Device server to agent: the message was refused, since the newer epoch `epoch` has begun."""

    epoch: int


ToTether = TetherRenew | TetherCall | TetherEnd
FromTether = TetherTold | TetherAnswer | TetherAway | TetherStale
