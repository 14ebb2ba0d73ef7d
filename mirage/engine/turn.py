"""The turn of an engine: whether its requests may step, as temporal sharing has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage.control.engine.fence import Fence
from mirage.control.turn_taking import Admits, Suspended, TurnTaking
from mirage.protocol import Turn

if TYPE_CHECKING:
    from mirage.engine.queues import EngineQueues


class EngineTurn:
    """`TurnTaking` over the requests and the steps of one engine."""

    def __init__(self, queues: EngineQueues, fence: Fence, *, temporal: bool) -> None:
        self._taking, self._temporal = TurnTaking(temporal=temporal), temporal
        self._queues, self._fence = queues, fence

    def told(self, message: Turn) -> None:
        """The turn came or went."""
        self._taking.told(message)

    def takes_turn(self) -> None:
        """The control server is lost: step at once, since no turn would come."""
        if self._temporal:
            self._taking.told(Turn(True))

    def awaits_turn(self) -> None:
        """Turns are given again: stop after the step in flight, until a turn comes."""
        if self._temporal:
            self._taking.told(Turn(False))

    def rest(self, rests: bool) -> None:
        """Let the engine rest or go on. At rest no step is scheduled, even with the turn."""
        self._taking.rest(rests)

    @property
    def granted(self) -> bool:
        """True while the turn is this engine's."""
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
        """Reported: False promises that no step of this engine runs."""
        return self._taking.holds(self._queues.begun, executing=not self._fence.idle)

    def admits(self) -> Admits:
        """Requests that the next step may have."""
        return self._taking.admits(self._queues)

    def spill(self, requests: Suspended, block_bytes: int) -> None:
        """Let suspended requests give up KV as the end of the turn told: it may go down."""
        if self._fence.idle:
            self._taking.spill(requests, block_bytes)
