"""Time until a tenant's engine serves again, estimated from its last starts. Pure.

The caller tells the events and the time, in seconds.
"""

from __future__ import annotations

from collections import deque

import msgspec

LOOK_AGAIN_S = 5.0
"""Seconds that a client is told to wait where no better prediction is known."""
STARTS = 3
"""Number of last starts that count, of which the longest is used: a start takes longer while other
engines serve.
"""


class ComebackTimes(msgspec.Struct, frozen=True):
    """Present or next start of an engine, as plain data. Times by `time.monotonic`."""

    usual_s: float = 0.0
    """Seconds of the longest of the last `STARTS` starts; 0 if none has succeeded."""
    begun: float | None = None
    """Time at which the present start began; None if none is under way."""
    again: float | None = None
    """Time at which the pause before the next start ends, or ended; None if there is no pause."""

    def shifted(self, seconds: float) -> ComebackTimes:
        """The same start for a process whose clock is `seconds` ahead."""

        def late(time: float | None) -> float | None:
            return None if time is None else time + seconds

        return ComebackTimes(self.usual_s, late(self.begun), late(self.again))

    @property
    def start_s(self) -> float:
        """Seconds of a start as seen before; `LOOK_AGAIN_S` if none was seen."""
        return self.usual_s or LOOK_AGAIN_S

    def wait_s(self, now: float) -> float | None:
        """Seconds until the engine may serve; None if neither a start nor a pause before one is
        known.

        `LOOK_AGAIN_S` if that time has passed.
        """
        if self.begun is not None:
            left = self.begun + self.usual_s - now
        elif self.again is not None:
            left = max(0.0, self.again - now) + self.usual_s
        else:
            return None
        return left if left > 0 else LOOK_AGAIN_S


class Comeback:
    """Pauses and starts of one engine, and the seconds that its last starts took."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=STARTS)
        self._again: float | None = None
        self._begun: float | None = None

    def pauses(self, now: float, seconds: float) -> None:
        """Note that the engine is started again in `seconds` seconds or a little later."""
        self._again, self._begun = now + seconds, None

    def starts(self, now: float) -> None:
        """Note that the engine starts now."""
        self._again, self._begun = None, now

    def serves(self, now: float) -> None:
        """Note that the engine serves."""
        if self._begun is not None:
            self._took.append(now - self._begun)
        self._again = self._begun = None

    @property
    def times(self) -> ComebackTimes:
        """Present or next start by all that is known now."""
        return ComebackTimes(max(self._took, default=0.0), self._begun, self._again)
