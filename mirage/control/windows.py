"""Values of the last seconds: the maximum, a mean, and the growth rate of a counter."""

from __future__ import annotations

from collections import deque
from math import exp, inf

from scheduler.clocked import Clocked


class RecentMax:
    """Maximum of a value over the last `span_s` seconds; a value holds until the next one."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._falls: deque[tuple[float, float]] = deque()
        """Pairs of a time and a value: since that time no larger value was added. The values
        strictly fall."""

    def add(self, value: float, now: float) -> None:
        since = now
        while self._falls and self._falls[-1][1] <= value:
            since = self._falls.pop()[0]
        self._falls.append((since, value))

    def at(self, now: float) -> Clocked[float]:
        """Return the maximum at `now` (seconds), and the time until which it is valid; 0 before the
        first value."""
        falls = self._falls
        while len(falls) > 1:
            if (until := falls[1][0] + self._span_s) > now:
                return Clocked(falls[0][1], until)
            falls.popleft()
        return Clocked(falls[0][1] if falls else 0.0)


class RecentMean:
    """Mean of the values added in the last `span_s` seconds, kept in tenths of that time."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._parts: deque[tuple[float, float, float]] = deque()
        """Begin, sum and weight of each part."""

    def add(self, total: float, weight: float, now: float) -> None:
        """Add `weight` values whose sum is `total`."""
        if self._parts and now < self._parts[-1][0] + self._span_s / 10:
            begin, before, weighs = self._parts.pop()
            self._parts.append((begin, before + total, weighs + weight))
        else:
            self._parts.append((now, total, weight))

    def at(self, now: float) -> Clocked[float]:
        """Return the mean at `now` (seconds), and the time until which it is valid; the mean is 0
        if no value was added in that time."""
        parts = self._parts
        while parts and parts[0][0] + self._span_s <= now:
            parts.popleft()
        weight = sum([part[2] for part in parts])
        mean = sum([part[1] for part in parts]) / weight if weight else 0.0
        return Clocked(mean, parts[0][0] + self._span_s if parts else inf)


class RecentRate:
    """Growth of a counter per second, smoothed: growth `span_s` seconds ago has a weight of about a
    third."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._seen: tuple[int, float] | None = None
        self.per_s = 0.0

    def add(self, count: int, now: float) -> None:
        """Note the value of the counter. A value that falls means that the counter began anew."""
        if self._seen is None or count < self._seen[0]:
            self._seen = count, now
            return
        before, since = self._seen
        if now <= since:
            return
        lately = 1 - exp(-(now - since) / self._span_s)
        self.per_s += lately * ((count - before) / (now - since) - self.per_s)
        self._seen = count, now
