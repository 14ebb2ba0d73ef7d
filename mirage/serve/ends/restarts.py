"""Time at which an engine that has ended is started again. Pure: no clock.

An end is not counted if its cause may be a request that may have ended the engine before: else a
client that repeats one bad request could end a tenant for good. Ends over different requests are
counted, because then the model is at fault, such as by a tokenizer with more ids than embeddings,
or a kernel.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

RESTARTS = 3
"""Number of counted ends in a row after which a tenant is still started again."""
BACKOFF_S = 1.0
"""Seconds of the first pause before a restart; doubled with each end in a row, counted or not, up
to `LONGEST_BACKOFF_S`.
"""
LONGEST_BACKOFF_S = 60.0
REST_S = 600.0
"""Seconds for which a tenant is failed before it is tried again; doubled each time in a row, up to
`LONGEST_REST_S`.
"""
LONGEST_REST_S = 3600.0
FORGIVEN_AFTER_S = 600.0
"""Seconds of serving since the last end after which earlier ends no longer count."""


@dataclass(frozen=True)
class Pause:
    """Seconds until the next start.

    `failed` is true if the tenant is given up for that long, and others may have its memory.
    """

    seconds: float
    failed: bool = False


class Restarts:
    """Ends of one tenant's engine, and the pauses after them.

    `backoff_s` is the first pause, `rest_s` the first rest of a tenant that is given up, in
    seconds.
    """

    def __init__(self, backoff_s: float = BACKOFF_S, rest_s: float = REST_S) -> None:
        self._backoff_s, self._rest_s = backoff_s, rest_s
        self._clear()

    def _clear(self) -> None:
        self._ends = self.counted = self._rests = 0
        self.counts = False
        """True if the last end was counted."""
        self._bodies: set[str] = set()
        self._served_s = 0.0
        """Seconds for which engines have served since the last end."""

    def stopped(self, served_s: float) -> None:
        """Note that the engine was told to stop after it had served for `served_s` seconds."""
        self._served_s += served_s

    def ended(self, served_s: float, bodies: Set[str] = frozenset()) -> Pause:
        """Note that the engine ended after it had served for `served_s` seconds; returns the pause
        before the next start.

        `bodies` has the digests of requests that may have caused the end.
        """
        if self._served_s + served_s > FORGIVEN_AFTER_S:
            self._clear()
        self._served_s = 0.0
        self._ends += 1
        self.counts = self._bodies.isdisjoint(bodies)
        self._bodies |= bodies
        self.counted += self.counts
        if self.counted > RESTARTS:
            return self.rest()
        return Pause(_doubled(self._backoff_s, self._ends - 1, LONGEST_BACKOFF_S))

    def rest(self) -> Pause:
        """Give the tenant up for now, because a start failed or ends were too many.

        Returns the rest before the next try; each one in a row is longer.
        """
        self.counted = RESTARTS
        self._rests += 1
        return Pause(_doubled(self._rest_s, self._rests - 1, LONGEST_REST_S), failed=True)


def _doubled(first: float, times: int, most: float) -> float:
    return min(most, first * 2.0 ** min(times, 20))
