"""Temporal sharing, inside an engine: whether it may step, and when it has yielded."""

from __future__ import annotations

from mirage.protocol import Turn


class TurnTaking:
    """What the control server's `Turn` messages mean here.

    A revoked engine stops after the step in flight. If it is told to drain it first lets the
    requests finish that it has begun, preempted ones included, and begins no others.
    """

    def __init__(self, *, temporal: bool) -> None:
        self.granted = not temporal
        self._drain = False

    def told(self, message: Turn) -> None:
        """The turn came or went, or is to end without draining further."""
        self.granted, self._drain = message.holds, message.drain

    def may_step(self, begun: int) -> bool:
        """Whether another step may be scheduled, with `begun` requests not finished."""
        return self.granted or (self._drain and begun > 0)

    def holds(self, begun: int, *, executing: bool) -> bool:
        """What is reported: False promises that no step of this engine runs."""
        return self.may_step(begun) or executing
