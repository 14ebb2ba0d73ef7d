"""Time until a tenant is served again, estimated from its last starts. Pure.

The caller says what happens, and what time it is, in seconds.
"""

from __future__ import annotations

from collections import deque

import msgspec

LOOK_AGAIN_S = 5.0
"""Seconds that are said where nothing better is known."""
STARTS = 3
"""The last ones, of which the longest counts: a start takes longer beside others that serve."""


class ComebackTimes(msgspec.Struct, frozen=True):
    """The present or next start of an engine, as plain data. Times by `time.monotonic`."""

    usual_s: float = 0.0
    """Seconds of a start; 0 where none is known."""
    begun: float | None = None
    """Time at which it began; None if none is under way."""
    again: float | None = None
    """Time at which the pause before it ends, or has ended; None without one."""

    @property
    def start_s(self) -> float:
        """Seconds of a start by the last ones; `LOOK_AGAIN_S` where none is known."""
        return self.usual_s or LOOK_AGAIN_S

    def wait_s(self, now: float) -> float | None:
        """Seconds until the engine may serve; None if it neither starts nor is to be started."""
        if self.begun is not None:
            left = self.begun + self.usual_s - now
        elif self.again is not None:
            left = max(0.0, self.again - now) + self.usual_s
        else:
            return None
        return left if left > 0 else LOOK_AGAIN_S


class Comeback:
    """Pauses and starts of one engine."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=STARTS)
        self._again: float | None = None
        self._begun: float | None = None

    def pauses(self, now: float, seconds: float) -> None:
        """The engine is started again after `seconds` seconds, or a little later."""
        self._again, self._begun = now + seconds, None

    def starts(self, now: float) -> None:
        """The engine starts now."""
        self._again, self._begun = None, now

    def serves(self, now: float) -> None:
        """The engine has started."""
        if self._begun is not None:
            self._took.append(now - self._begun)
        self._again = self._begun = None

    @property
    def times(self) -> ComebackTimes:
        """Times as they are known now."""
        return ComebackTimes(max(self._took, default=0.0), self._begun, self._again)
