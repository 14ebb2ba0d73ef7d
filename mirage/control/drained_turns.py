"""Length of turns that drain, as measured. Pure.

Such a turn begins requests for as long as it is configured, and then finishes those that it has
begun, which takes several times as long. Lent memory has its way back once in all of that time.
"""

from __future__ import annotations

from math import inf

from mirage.control.spilling import TurnLengths

LATELY = 0.25
"""Weight of the newest turn in the smoothed length: a mean over some four turns."""


class DrainedTurns:
    """Measured length of the turns, for a plan. Times are seconds."""

    def __init__(self, meant: TurnLengths) -> None:
        """Initialise without a measured turn; `meant` has the turns as they are configured."""
        self._meant = meant
        self._length_s: float | None = None
        """Smoothed length of a turn in seconds; None until a turn is over."""
        self._holder: str | None = None
        self._since = 0.0
        self._revoked = -inf

    def turns(self, now: float, *, alone: bool) -> TurnLengths:
        """Return the lengths of turns for a plan at `now`: their length is the smoothed one of all
        tenants' turns so far, or the configured one until any turn has ended.

        `alone` is True if no other tenant waits for the present turn to end. Then the present turn
        counts as young until it has lasted for that length: waiting requests leave memory free to
        the growth of running ones.
        """
        seconds = self._meant.seconds if self._length_s is None else self._length_s
        return self._meant._replace(seconds=seconds, young=alone and now - self._since < seconds)

    def began(self, name: str, now: float) -> None:
        """Note that a tenant got the turn. If it had the turn before, the same turn goes on."""
        if name == self._holder:
            return
        if self._holder is not None:
            self._saw(now)
        self._holder, self._since = name, now

    def revoked(self, now: float) -> None:
        """Note that the turn begins no more requests."""
        self._revoked = now

    def _saw(self, now: float) -> None:
        """Learn from the present turn, which is over.

        The part that lasted beyond the configured length before the turn was revoked is left out:
        no other tenant waited then, so it says nothing about turns between which memory moves.
        """
        draining_s = now - max(self._since, self._revoked)
        newest = min(now - self._since, self._meant.seconds + draining_s)
        mean = newest if self._length_s is None else self._length_s
        self._length_s = mean + LATELY * (newest - mean)
