"""Values of the last seconds: the largest one, and how fast a counter grows."""

from __future__ import annotations

from collections import deque
from math import exp

from scheduler.clocked import Clocked


class RecentMax:
    """The maximum of a value over the last `span_s` seconds, each one in force until the next."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._falls: deque[tuple[float, float]] = deque()
        """(since when no larger value was seen, value), values strictly falling."""

    def add(self, value: float, now: float) -> None:
        since = now
        while self._falls and self._falls[-1][1] <= value:
            since = self._falls.pop()[0]
        self._falls.append((since, value))

    def at(self, now: float) -> Clocked[float]:
        """0 before the first value."""
        falls = self._falls
        while len(falls) > 1:
            if (until := falls[1][0] + self._span_s) > now:
                return Clocked(falls[0][1], until)
            falls.popleft()
        return Clocked(falls[0][1] if falls else 0.0)


class RecentRate:
    """Growth of a counter per second, smoothed: growth of `span_s` ago counts a third."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._seen: tuple[int, float] | None = None
        self.per_s = 0.0

    def add(self, count: int, now: float) -> None:
        """Note what the counter shows. One that falls began anew."""
        if self._seen is None or count < self._seen[0]:
            self._seen = count, now
            return
        before, since = self._seen
        if now <= since:
            return
        lately = 1 - exp(-(now - since) / self._span_s)
        self.per_s += lately * ((count - before) / (now - since) - self.per_s)
        self._seen = count, now
