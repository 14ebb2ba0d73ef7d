"""Temporal sharing inside an engine: the decision to step, and the confirmation that it has
stopped."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from mirage.protocol import Turn


class Admits(Enum):
    """Requests that a step may compute, by its engine's turn."""

    ALL = "all"
    PREEMPTED = "preempted"
    """Running requests, and waiting ones that ran before."""
    RUNNING = "running"
    NONE = "none"


class Begun(Protocol):
    """Requests that an engine has begun."""

    @property
    def begun(self) -> int:
        """Number of requests that a draining turn has to finish: running ones and `preempted`."""

    @property
    def preempted(self) -> int:
        """Number of waiting requests that ran before."""


class Suspended(Protocol):
    """Requests of an engine that has stopped."""

    @property
    def begun(self) -> int:
        """Number of requests that a draining turn would have to finish."""

    @property
    def used_blocks(self) -> int:
        """Number of KV blocks in use, which no other request can be given."""

    def give_up_newest(self) -> bool:
        """Preempt the newest request that has loaded and not gone on since, or if there is none the
        newest that runs; False if there is neither."""


class TurnTaking:
    """Turn of an engine, as the control server's `Turn` messages set it.

    A revoked engine stops after the step in flight. If it is told to drain, it first finishes the
    requests that it has begun, preempted ones included, and begins no others. Once it has stopped,
    its requests give up as much KV memory as it was told (`Suspended.give_up_newest`).

    An engine that rests (it is to sleep, or has no layers) does not step even if it has the turn,
    and all its requests give up their KV memory.
    """

    def __init__(self, *, temporal: bool) -> None:
        self.granted = not temporal
        self._drain = False
        self._spill_bytes = 0
        self._rests = False

    def told(self, message: Turn) -> None:
        """Note a message: the turn came, ended, or shall end without draining further."""
        self.granted = message.holds
        self._drain = message.drain and not self._rests
        self._spill_bytes = message.spill_bytes

    def rest(self, rests: bool) -> None:
        """Note that the engine rests from now on (`rests` is True) or no longer. A drain ends with
        a rest."""
        self._rests = rests
        self._drain &= not rests

    def may_step(self, begun: int) -> bool:
        """True if another step may be scheduled, with `begun` unfinished requests."""
        return not self._rests and (self.granted or self._drains(begun))

    def admits(self, requests: Begun) -> Admits:
        """Return the requests that the next step may compute. A turn that drains begins no
        others."""
        if self.granted and not self._rests:
            return Admits.ALL
        if not self.may_step(requests.begun):
            return Admits.NONE
        return Admits.PREEMPTED if requests.preempted else Admits.RUNNING

    def spill(self, requests: Suspended, block_bytes: int) -> int:
        """Let requests give up as much KV as the engine was told, in the order of
        `Suspended.give_up_newest`, once it has stopped; return their number.

        In an engine that rests, they give up all. Requests whose blocks are still being loaded
        cannot; the next call tries them again.
        """
        given_up = 0
        while (self._rests or self._spill_bytes > 0) and not self.may_step(requests.begun):
            before = requests.used_blocks
            if not requests.give_up_newest():
                break
            self._spill_bytes -= (before - requests.used_blocks) * block_bytes
            given_up += 1
        return given_up

    def holds(self, begun: int, *, executing: bool) -> bool:
        """True while the engine holds the turn, so that a step of it may run; its reports to the
        control server have this value.

        It holds the turn until a message ends the turn, after that while it drains and has `begun`
        requests to finish, and while a step is still `executing`; always under spatial sharing.
        """
        return self.granted or self._drains(begun) or executing

    def _drains(self, begun: int) -> bool:
        return self._drain and begun > 0
