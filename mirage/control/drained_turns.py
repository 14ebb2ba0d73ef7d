"""Turns that drain, as they are seen: how long they last. Pure.

Such a turn begins requests for as long as it is meant to last, and then ends those that it has
begun, which takes several times as long. What is lent has its way back once in all of that time.
"""

from __future__ import annotations

from math import inf

from mirage.control.spilling import TurnLengths

LATELY = 0.25
"""Weight of the newest turn: some four turns make a mean."""


class DrainedTurns:
    """Length of the turns that were seen, for a plan. Times are seconds."""

    def __init__(self, meant: TurnLengths) -> None:
        """`meant`: the turns as they are configured."""
        self._meant = meant
        self._length_s: float | None = None
        """None until a turn is over."""
        self._holder: str | None = None
        self._since = 0.0
        self._revoked = -inf

    def turns(self, now: float, *, alone: bool) -> TurnLengths:
        """Turns as they were lately; as they are meant until the first is over.

        `alone`: whether nobody waits for the present one to end.
        """
        seconds = self._meant.seconds if self._length_s is None else self._length_s
        return self._meant._replace(seconds=seconds, young=alone and now - self._since < seconds)

    def began(self, name: str, now: float) -> None:
        """A tenant got the turn. One that had it before goes on: nothing moves."""
        if name == self._holder:
            return
        if self._holder is not None:
            self._saw(now)
        self._holder, self._since = name, now

    def revoked(self, now: float) -> None:
        """Note that the turn begins no more requests."""
        self._revoked = now

    def _saw(self, now: float) -> None:
        """The present turn is over.

        While it lasted longer than meant before it was revoked, nobody else waited: that says
        nothing of turns between which memory moves.
        """
        draining_s = now - max(self._since, self._revoked)
        newest = min(now - self._since, self._meant.seconds + draining_s)
        mean = newest if self._length_s is None else self._length_s
        self._length_s = mean + LATELY * (newest - mean)
