"""What need not be computed since it was found: tokens by where they were, and their time."""

from __future__ import annotations

from mirage.simulate.roofline import Roofline, Streaming, Work
from mirage.simulate.tally import Tally


class Savings:
    """Of one engine."""

    def __init__(self, tally: Tally, roofline: Roofline) -> None:
        self._tally, self._bounds = tally, roofline.bounds(Streaming(), 1)

    def add(self, place: str, first: int, tokens: int) -> None:
        """`tokens` of a prompt, from number `first` on, were found at a `place`.

        They would have shared steps, so their time is what they add to one.
        """
        if not tokens:
            return
        counters = self._tally.counters
        counters.found[place] += tokens
        area = tokens * (2 * first + tokens + 1)
        work = Work(0, 0, tokens, area)
        counters.saved_ps += max(bound.at(work) - bound.fixed for bound in self._bounds)
