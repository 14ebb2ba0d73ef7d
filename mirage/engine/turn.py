"""Turn of an engine, which decides under temporal sharing if its requests may step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage.control.engine.fence import Fence
from mirage.control.turn_taking import Admits, Suspended, TurnTaking
from mirage.protocol import Turn

if TYPE_CHECKING:
    from mirage.engine.queues import EngineQueues


class EngineTurn:
    """Right of one engine to step under temporal sharing: `TurnTaking` with the engine's requests
    and steps."""

    def __init__(self, queues: EngineQueues, fence: Fence, *, temporal: bool) -> None:
        self._taking, self._temporal = TurnTaking(temporal=temporal), temporal
        self._queues, self._fence = queues, fence

    def told(self, message: Turn) -> None:
        """Note a message: the turn came, ended, or shall end without draining further."""
        self._taking.told(message)

    def takes_turn(self) -> None:
        """Take the turn, under temporal sharing: the control server is lost, so none would be
        given."""
        if self._temporal:
            self._taking.told(Turn(True))

    def awaits_turn(self) -> None:
        """End the turn after the step in flight, under temporal sharing: another control server
        gives turns again."""
        if self._temporal:
            self._taking.told(Turn(False))

    def rest(self, rests: bool) -> None:
        """Let the engine rest (`rests` is True) or go on. At rest no step is scheduled, even with
        the turn."""
        self._taking.rest(rests)

    @property
    def granted(self) -> bool:
        """True while this engine has the turn; always without temporal sharing."""
        return self._taking.granted

    @property
    def may_step(self) -> bool:
        """True if another step may be scheduled."""
        return self._taking.may_step(self._queues.begun)

    @property
    def stopped(self) -> bool:
        """True if no step may be scheduled, and none is in flight."""
        return self._fence.idle and not self.may_step

    @property
    def held(self) -> bool:
        """True if a step of this engine may be running. Reports say it; False promises that none
        runs."""
        return self._taking.holds(self._queues.begun, executing=not self._fence.idle)

    def admits(self) -> Admits:
        """Return the requests that the next step may compute."""
        return self._taking.admits(self._queues)

    def spill(self, requests: Suspended, block_bytes: int) -> None:
        """Let suspended requests give up the KV that the end of the turn asked for, once no step is
        in flight."""
        if self._fence.idle:
            self._taking.spill(requests, block_bytes)
