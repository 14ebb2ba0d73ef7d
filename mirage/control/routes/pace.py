"""Rate at which a busy replica ends requests. Times are seconds.

An observation counts half after `HALF_S` seconds in which the replica was busy. So the rate of a
replica that is stuck falls with every second.
"""

from __future__ import annotations

HALF_S = 30.0
LEAST = 8
"""Number of requests answered well (see `ReplicaPace.ends`) before a rate is known."""


class ReplicaPace:
    """Rate of one replica, measured from its first request on."""

    def __init__(self) -> None:
        self._ended = self._busy_s = self._seen = 0.0
        self._running = self._answered = 0

    def begins(self, now: float) -> None:
        """Note that a request is sent to the replica: one more is in flight."""
        self._look(now)
        self._running += 1

    def ends(self, now: float, *, well: bool) -> None:
        """Note that the replica has answered a request, or broke it off; `well` is True for a whole
        answer with a status below 500."""
        self._look(now)
        self._running -= 1
        self._ended += well
        self._answered += well

    def rate(self, now: float) -> float:
        """Return the requests answered well per second of busy time; 0 before `LEAST` such
        answers."""
        self._look(now)
        return self._ended / self._busy_s if self._answered >= LEAST and self._busy_s else 0.0

    def _look(self, now: float) -> None:
        if self._running:
            passed = max(0.0, now - self._seen)
            kept = 0.5 ** (passed / HALF_S)
            self._ended, self._busy_s = self._ended * kept, self._busy_s * kept + passed
        self._seen = now
