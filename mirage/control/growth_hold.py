"""Shortage of an engine at the moment, and the hold of a request until the control server answers.

If no block can be allocated for a running request, the request is held, not preempted, until the
control server has answered. A refusal lets vLLM preempt as it does without MIRAGE, until the next
allotment.

An answer may be late on a slow machine: the server decides within `hold_s` seconds, but its message
takes time. So an engine waits longer than `hold_s`, at most `LONGEST_S` seconds, while any message
shows that the server lives. A server that has sent nothing for `SILENT_S` seconds counts as dead,
and then a request waits no longer than `hold_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

SILENT_S = 3.0
"""Seconds without a message after which the server counts as dead: six missed beats of
`protocol.BEAT_S`."""
LONGEST_S = 10.0
"""Longest time in seconds for which one shortage is held for an answer, whatever else is heard."""


def never() -> float:
    """Time of the last message of a server that has sent none."""
    return -inf


class GrowthHold:
    """KV blocks that running requests of an engine lacked in the last step (the largest number that
    one of them lacked), and the time for which a request is held for an answer.

    `hold_s` is the number of seconds within which the control server decides. `clock` returns
    seconds; `heard` returns the time on that clock at which the control server was last heard.
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
        """Time in seconds at which the shortage began; None if nothing is short, and after an
        allotment that may end it."""
        self._refused_now = False

    def begin_step(self) -> None:
        """Begin the scheduling of a step: no allocation has failed for this step yet."""
        self._step_missing = 0

    def lacks(self, blocks: int, free: int) -> None:
        """Note that a running request lacks `blocks` blocks beyond the `free` ones."""
        self._step_missing = max(self._step_missing, blocks)
        self._needed_free = free + self._step_missing
        if self.since is None:
            self.since = self._clock()

    def end_step(self) -> bool:
        """End the scheduling of a step; True if the number of missing blocks changed since the step
        before and should be reported immediately."""
        changed = self._step_missing != self.missing
        self.missing = self._step_missing
        if not self.missing:
            self.since = None
            self._refused_now = False
        return changed

    @property
    def due(self) -> int:
        """Blocks that must be free for the request that lacked most blocks in the last step; 0 if
        none lacked any."""
        return self._needed_free if self.missing else 0

    def may_hold(self, *, answerable: bool = True) -> bool:
        """True if a request may be held, since an answer may still come.

        An engine without the turn is not `answerable`: the server answers it only when it has the
        turn. Its request is held for no longer than `hold_s` seconds.
        """
        if self._refused_now or self.since is None:
            return False
        now = self._clock()
        held_s = now - self.since
        if held_s < self.hold_s:
            return True
        return answerable and held_s < LONGEST_S and now - self._heard() < SILENT_S

    def answered(self) -> None:
        """Note that an allotment came: memory may be on its way, so the engine waits for it instead
        of preempting.
        """
        self._refused_now = False
        self.since = None

    def refused(self) -> None:
        """Note that no memory can be had for the present shortage. Ignored if the shortage is
        over."""
        self._refused_now = self.missing > 0
