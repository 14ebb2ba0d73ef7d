"""Shortage of an engine right now, and the hold of a request until it is answered.

An allocation of a running request failed: the request is held, not preempted, until the control
server has answered. A refusal lets vLLM preempt as it would, until the next allotment.

An answer may be late where everything is slow: the server decides within `hold_s` seconds, but its
message takes time. So an engine waits longer than that while the server shows that it lives, by any
message, for `LONGEST_S` seconds at most. A server that has not been heard for `SILENT_S` is taken
for dead, and a request waits no longer than `hold_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

SILENT_S = 3.0
"""Six beats missed: see `protocol.BEAT_S`."""
LONGEST_S = 10.0
"""Longest time in seconds for which one shortage is held for an answer, whatever else is heard."""


def never() -> float:
    """Time of the last sign of life of a server that shows none."""
    return -inf


class GrowthHold:
    """The blocks that running requests lacked in the last step.

    `clock` tells seconds, `heard` when on that clock the control server was last heard.
    """

    def __init__(
        self, hold_s: float, clock: Callable[[], float], heard: Callable[[], float] = never
    ) -> None:
        self.hold_s = hold_s
        self._clock, self._heard = clock, heard
        self.missing = 0
        self._step_missing = 0
        self._needed_free = 0
        self.since: float | None = None
        """Seconds, when the shortage began, or an allotment came that was not enough."""
        self._refused_now = False

    def begin_step(self) -> None:
        """A scheduling pass starts: nothing has failed in it yet."""
        self._step_missing = 0

    def lacks(self, blocks: int, free: int) -> None:
        """A running request could not get `blocks` blocks beyond the `free` ones."""
        self._step_missing = max(self._step_missing, blocks)
        self._needed_free = free + self._step_missing
        if self.since is None:
            self.since = self._clock()

    def end_step(self) -> bool:
        """The pass is over; True if what is missing changed and should be reported at once."""
        changed = self._step_missing != self.missing
        self.missing = self._step_missing
        if not self.missing:
            self.since = None
            self._refused_now = False
        return changed

    @property
    def due(self) -> int:
        """Blocks that must be free for what the last step lacked; 0 if it lacked none."""
        return self._needed_free if self.missing else 0

    def may_hold(self, *, answerable: bool = True) -> bool:
        """True if there is still an answer to wait for.

        Without its turn an engine is not `answerable`: the server answers once it has it.
        """
        if self._refused_now or self.since is None:
            return False
        now = self._clock()
        held_s = now - self.since
        if held_s < self.hold_s:
            return True
        return answerable and held_s < LONGEST_S and now - self._heard() < SILENT_S

    def answered(self) -> None:
        """An allotment came: memory may be on its way."""
        self._refused_now = False
        self.since = None

    def refused(self) -> None:
        """No memory can be had for the present shortage. Ignored if it is over."""
        self._refused_now = self.missing > 0
