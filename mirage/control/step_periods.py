"""Seconds from the end of one step to the end of the next, with everything that an engine does.
Pure."""

from __future__ import annotations

MEMORY = 0.995
"""Factor by which the weight of a step falls with each further step: a mean over some two
hundred."""


class StepPeriods:
    """Mean of the last steps of an engine with one or more steps in flight."""

    def __init__(self) -> None:
        self._since: float | None = None
        """Time in seconds from which the step that ends next counts; None while the engine
        rests."""
        self._n = self._tokens = self._seconds = 0.0

    def begins(self, now: float) -> None:
        """Note that a step is scheduled, at `now` seconds of any clock."""
        if self._since is None:
            self._since = now

    def rests(self) -> None:
        """Note that the engine rests: time until the next step begins does not count."""
        self._since = None

    def ends(self, tokens: int, now: float) -> None:
        """Note that the oldest step in flight has ended at `now`; it has computed `tokens`
        tokens."""
        if self._since is not None:
            self._n = self._n * MEMORY + 1
            self._tokens = self._tokens * MEMORY + tokens
            self._seconds = self._seconds * MEMORY + now - self._since
        self._since = now

    def beside_s(self, token_s: float) -> float:
        """Return the seconds of a step without its tokens, each of which takes `token_s`; 0 while
        unknown."""
        return max(0.0, self._seconds - token_s * self._tokens) / self._n if self._n else 0.0
