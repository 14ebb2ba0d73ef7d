"""Time at which an engine that ended is started again. Pure: no clock.

An end is not counted if a request may have caused it that ended the engine before: otherwise a
client that sends one bad request again and again could end a tenant for good. Ends over other
requests each time are counted, since then the fault is the model's: a tokenizer with more ids than
the model has embeddings, a kernel.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

RESTARTS = 3
"""Counted ends in a row after which a tenant is still started again."""
BACKOFF_S = 1.0
"""Doubled with every end in a row."""
LONGEST_BACKOFF_S = 60.0
REST_S = 600.0
"""Seconds for which a tenant is failed before it is tried again; doubled each time in a row."""
LONGEST_REST_S = 3600.0
FORGIVEN_AFTER_S = 600.0
"""A tenant that served this long since its last end has a clean record."""


@dataclass(frozen=True)
class Pause:
    """Seconds until the next start. `failed`: until then others may have the tenant's memory."""

    seconds: float
    failed: bool = False


class Restarts:
    """The record of one tenant's engine. The first pause, and the first rest, in seconds."""

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
        """The engine was told to stop after `served_s` seconds, and another one may follow."""
        self._served_s += served_s

    def ended(self, served_s: float, bodies: Set[str] = frozenset()) -> Pause:
        """The engine ended after `served_s` seconds.

        `bodies` has the fingerprints of requests that may have caused it.
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
        """The engine does not start, or ended too often: each further one makes a longer rest."""
        self.counted = RESTARTS
        self._rests += 1
        return Pause(_doubled(self._rest_s, self._rests - 1, LONGEST_REST_S), failed=True)


def _doubled(first: float, times: int, most: float) -> float:
    return min(most, first * 2.0 ** min(times, 20))
