"""Times counted by their length, as in a Prometheus histogram. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class TimeCounts:
    """Counts of times by upper bounds in seconds, and the sum of the times."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Make empty counts. `bounds` ascend; a time equal to a bound counts as within it."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one time."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.total_s += seconds

    @property
    def count(self) -> int:
        """Number of all counted times."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return the number of times up to each bound, and of all; bounds as Prometheus writes
        them."""
        found, sum_so_far = [], 0
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            sum_so_far += count
            found.append((bound, float(sum_so_far)))
        return found
