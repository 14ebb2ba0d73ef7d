"""Copies that follow one another over a link, in whole picoseconds."""

from __future__ import annotations

from mirage.simulate.roofline import PS


class Lane:
    """One direction of a link with `bytes_per_s`, and `latency_ps` until the first byte of each
    copy.
    """

    def __init__(self, bytes_per_s: float, latency_ps: int = 0) -> None:
        self._bytes_per_s, self._latency_ps = bytes_per_s, latency_ps
        self._free_at = 0

    def takes(self, nbytes: int) -> int:
        """Picoseconds for which `nbytes` occupy the link: without the latency, and without waiting
        for other copies."""
        return round(nbytes / self._bytes_per_s * PS)

    def copy(self, now: int, nbytes: int) -> int:
        """Put a copy behind those requested before, and return the time at which it ends. Its
        latency overlaps with other copies.
        """
        self._free_at = max(now, self._free_at) + self.takes(nbytes)
        return self._free_at + self._latency_ps

    def backlog(self, now: int) -> int:
        """Picoseconds for which the copies requested so far still occupy the link, from `now` on,
        without their latency."""
        return max(0, self._free_at - now)
