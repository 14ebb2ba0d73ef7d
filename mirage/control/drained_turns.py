"""Turns that drain, as they are seen: how long they last, how fast KV memory fills in them. Pure.

Such a turn begins requests for `window_s` seconds and then ends those that it has begun, which
takes several times as long. What is lent has its way back at the beginning of a turn: it is paid
once in all of that time, and out of the seconds in which requests begin.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf

from mirage.control.lending import worth_lending
from mirage.control.spilling import TurnLengths

LATELY = 0.25
"""Weight of the newest turn: some four turns make a mean."""
EARLY = 0.25
"""Part of the window before which too little has begun to tell how fast."""
UNSEEN = 1 / 8
"""Part of the window that the way back may take before it is known how fast memory fills in it."""


class DrainedTurns:
    """Lengths and fill rate of the turns that were seen, for a plan. Times are seconds."""

    def __init__(self, meant: TurnLengths) -> None:
        """`meant`: the turns as they are configured."""
        self._window_s = meant.seconds
        self._meant = meant._replace(window_s=meant.seconds)
        self._length_s = meant.seconds
        self._holder: str | None = None
        self._since = 0.0
        self._fastest = 0.0
        """Fill rate of the present turn, bytes a second; 0 until its queue is more than fits."""
        self._fills: dict[str, float] = {}

    def turns(self) -> TurnLengths:
        """Turns as they were lately; as they are meant until the first is over."""
        fills = min(self._fills.values(), default=inf)
        return self._meant._replace(seconds=self._length_s, fills_bytes_s=fills)

    def began(self, name: str, now: float) -> None:
        """A tenant got the turn. One that had it before goes on: nothing moves."""
        if name == self._holder:
            return
        if self._holder is not None:
            self._length_s = _towards(self._length_s, now - self._since)
            self._filled(self._holder)
        self._holder, self._since, self._fastest = name, now, 0.0

    def reported(self, name: str, used_bytes: int, running: int, waiting: int, now: float) -> None:
        """An engine's KV memory in use, and its requests.

        Only where as many wait as run is it told how fast: else requests may have come as slowly.
        """
        elapsed = now - self._since
        if name != self._holder or not EARLY * self._window_s <= elapsed <= self._window_s:
            return
        if waiting and waiting >= running:
            self._fastest = max(self._fastest, used_bytes / elapsed)

    def lost(self, name: str) -> None:
        """An engine is gone."""
        self._fills.pop(name, None)

    def _filled(self, name: str) -> None:
        """The turn of `name` is over. Who had no queue in it lacks no time."""
        if not self._fastest:
            self._fills.pop(name, None)
            return
        self._fills[name] = _towards(self._fills.get(name, self._fastest), self._fastest)


@lru_cache(maxsize=64)
def worth_lending_drained(
    pool_bytes: int, link_bytes_s: float, turns: TurnLengths, part: float, *, lending: bool
) -> int:
    """Bytes of layers up to which lending brings more than it costs where turns drain.

    What would pay if a turn were no longer than its window pays in any case. More does where all
    of a turn pays for it, as far as it can be taken in what is left of the window. `part` and
    `lending` as in `worth_lending`.
    """
    window_s = min(turns.window_s, turns.seconds)
    most = filled_in_time(pool_bytes, link_bytes_s, window_s, turns.fills_bytes_s)
    return max(
        worth_lending(pool_bytes, link_bytes_s * window_s, part, lending=lending),
        worth_lending(pool_bytes, link_bytes_s * turns.seconds, part, most=most, lending=lending),
    )


def filled_in_time(
    pool_bytes: int, link_bytes_s: float, window_s: float, fills_bytes_s: float
) -> float:
    """Most bytes of layers that are worth lending where requests begin for `window_s` of a turn.

    `pool_bytes`: KV memory with all layers in place; `fills_bytes_s`: how fast it is taken, bytes a
    second. With y lent, pool + y bytes are to be taken in what the way back leaves of the window,
    which are fills * (window - y / link): beyond that, layers take more requests from the
    turn of their owner than they bring to another's. While that is unknown (inf), the way back
    takes `UNSEEN` of the window at most.
    """
    if link_bytes_s <= 0:
        return 0.0
    if fills_bytes_s == inf:
        return UNSEEN * link_bytes_s * window_s
    more = fills_bytes_s * window_s - pool_bytes
    return max(0.0, more / (1 + fills_bytes_s / link_bytes_s))


def _towards(mean: float, newest: float) -> float:
    return mean + LATELY * (newest - mean)
