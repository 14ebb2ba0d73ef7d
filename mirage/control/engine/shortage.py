"""Pacing of requests for granted memory after a device has refused some of it. Pure.

The memory of a killed engine is booked as free when its socket closes, but the device may free it
later. And torch caches memory that a long prompt needed, in this process or in another one. Layers
come as a whole or not at all: asking for everything again in each round would create and release
pages beside running kernels for as long as the shortage lasts. KV extents that could be had are
kept; the rest is requested later.
"""

from __future__ import annotations

FIRST_S, LONGEST_S = 0.02, 2.0
"""Seconds until the next try after a refusal: first, and at most. The wait doubles after each
refusal."""


class Shortage:
    """Memory that the device lacks. After a refusal the next request is delayed, and is for half of
    what was refused; a success doubles it."""

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._wait_s, self._until_s = first_s, 0.0
        self._most: int | None = None
        """Number of layers or extents to ask for in one order; None while nothing is short."""

    @property
    def lasts(self) -> bool:
        """True from a refusal until the device had memory for all layers or extents that were
        wanted."""
        return self._most is not None

    def most(self, wanted: int, now_s: float) -> int:
        """Return the number of the `wanted` layers or extents to ask for at `now_s` seconds; 0
        until the next try is due."""
        if self._most is None or wanted <= 0:
            return max(0, wanted)
        return min(wanted, self._most) if now_s >= self._until_s else 0

    def refused(self, asked: int, now_s: float) -> None:
        """Note at `now_s` seconds that the device did not have memory for `asked` layers or
        extents."""
        self._most = max(1, asked // 2)
        self._until_s = now_s + self._wait_s
        self._wait_s = min(self._longest_s, 2 * self._wait_s)

    def had(self, asked: int, wanted: int) -> None:
        """Note that the device had memory for `asked` of `wanted` layers or extents; if `asked` is
        all of them, the shortage is over."""
        self._wait_s, self._until_s = self._first_s, 0.0
        self._most = None if self._most is None or asked >= wanted else 2 * asked
