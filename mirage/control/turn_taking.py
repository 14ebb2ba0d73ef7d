"""Temporal sharing, inside an engine: whether it may step, and when it has yielded."""

from __future__ import annotations

from mirage.protocol import Turn


class TurnTaking:
    """What the control server's `Turn` messages mean here.

    A revoked engine stops after the step in flight. If it is told to drain it first lets the
    requests finish that it has begun, preempted ones included, and begins no others. Once it has
    stopped its newest requests give up their KV memory, as far as it was told.
    """

    def __init__(self, *, temporal: bool) -> None:
        self.granted = not temporal
        self._drain = False
        self._spill_bytes = 0

    def told(self, message: Turn) -> None:
        """The turn came or went, or is to end without draining further."""
        self.granted, self._drain = message.holds, message.drain
        self._spill_bytes = message.spill_bytes

    def may_step(self, begun: int) -> bool:
        """Whether another step may be scheduled, with `begun` requests not finished."""
        return self.granted or (self._drain and begun > 0)

    def spills(self, begun: int) -> bool:
        """True while requests that have stopped shall give up more KV memory."""
        return self._spill_bytes > 0 and not self.may_step(begun)

    def spilled(self, nbytes: int) -> None:
        """A request has given up its KV memory: `nbytes` that nobody else uses."""
        self._spill_bytes -= nbytes

    def holds(self, begun: int, *, executing: bool) -> bool:
        """What is reported: False promises that no step of this engine runs."""
        return self.may_step(begun) or executing
