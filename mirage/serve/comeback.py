"""Time until a tenant is served again, estimated from its last starts. Pure.

The caller says what happens, and what time it is, in seconds.
"""

from __future__ import annotations

from collections import deque

LOOK_AGAIN_S = 5.0
"""Seconds that are said where nothing better is known."""
STARTS = 3
"""The last ones, of which the longest counts: a start takes longer beside others that serve."""


class Comeback:
    """Pauses and starts of one engine."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=STARTS)
        self._again: float | None = None
        """Time at which the pause ends, or has ended."""
        self._begun: float | None = None

    def pauses(self, now: float, seconds: float) -> None:
        """It is started again in so many seconds, or a little later."""
        self._again, self._begun = now + seconds, None

    def starts(self, now: float) -> None:
        """It starts now."""
        self._again, self._begun = None, now

    def serves(self, now: float) -> None:
        """It has started."""
        if self._begun is not None:
            self._took.append(now - self._begun)
        self._again = self._begun = None

    @property
    def start_s(self) -> float:
        """Seconds of a start by the last ones; `LOOK_AGAIN_S` where none is known."""
        return max(self._took, default=LOOK_AGAIN_S)

    def wait_s(self, now: float) -> float | None:
        """Seconds until it may serve; None if it neither starts nor is to be started."""
        usual = max(self._took, default=0.0)
        if self._begun is not None:
            left = self._begun + usual - now
        elif self._again is not None:
            left = max(0.0, self._again - now) + usual
        else:
            return None
        return left if left > 0 else LOOK_AGAIN_S
