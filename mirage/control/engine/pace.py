"""Limit on the memory that one round may move while requests wait for their next token.

Moving a layer takes some calls of the driver for each page: tens of milliseconds on a GPU. Moving
twenty layers in one go would stop every request of the engine for half a second; a few in each step
are hardly noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from mirage.control.engine.way import Kind

NEW = 0.5
"""Weight of the newest move in the smoothed seconds per move."""


class Pace:
    """Limit of one round to the moves that fit into `most_s` seconds, by the time that earlier
    moves took, but to at least one.

    There is no limit if `most_s` is None, or while `stepping` is false: then no step follows, and
    so no later round would move the rest.
    """

    def __init__(self, most_s: float | None, stepping: Callable[[], bool]) -> None:
        self._most_s = inf if most_s is None else most_s
        self._stepping = stepping
        self._each_s: dict[Kind, float] = {}
        self._left_s = inf
        self._moved = False

    def begin(self, most_s: float = inf) -> None:
        """Begin a round that takes `most_s` seconds at most, even if no step follows, and no longer
        than the limit of this pace while steps follow."""
        self._left_s = min(most_s, self._most_s if self._stepping() else inf)
        self._moved = False

    def most(self, kind: Kind, wanted: int) -> int:
        """Return the number of the `wanted` moves of layers or extents (`kind`) that fit into the
        time left in this round; at least one as long as the round has ordered no move."""
        if wanted <= 0 or self._left_s == inf:
            return max(0, wanted)
        each_s = self._each_s.get(kind)
        # The first of its kind is tried, to see what it takes, if there is any time left.
        fitting = int(max(0.0, self._left_s) / each_s) if each_s else int(self._left_s > 0)
        return min(wanted, fitting if self._moved else max(1, fitting))

    def ordered(self, kind: Kind, count: int) -> None:
        """Note that `count` layers or extents (`kind`) are ordered to be moved. A kind that was
        never moved uses up the whole round, because its time is not known."""
        self._moved = True
        if self._left_s < inf:
            self._left_s -= count * self._each_s.get(kind, inf) if count else 0.0

    def took(self, kind: Kind, count: int, seconds: float) -> None:
        """Note that a move of `count` layers or extents (`kind`) took `seconds`, whether or not it
        failed."""
        each_s = seconds / max(1, count)
        self._each_s[kind] = each_s * NEW + self._each_s.get(kind, each_s) * (1 - NEW)
