"""Tokens that need not be computed since they were found, by their place, and the time that they
save.
"""

from __future__ import annotations

from mirage.simulate.roofline import PS, Roofline, Streaming, Work
from mirage.simulate.tally import Tally

SEVERAL = 512
"""Tokens of a usual prompt."""


class Savings:
    """Savings of one engine."""

    def __init__(self, tally: Tally, roofline: Roofline) -> None:
        self._tally, self._bounds = tally, roofline.bounds(Streaming(), 1)
        self.token_s = self._added_ps(0, SEVERAL) / SEVERAL / PS
        """By which one more token of a prompt lengthens a step."""

    def add(self, place: str, first: int, tokens: int) -> None:
        """`tokens` of a prompt, from number `first` on, were found at a `place`.

        They would have shared steps, so their time is what they add to one.
        """
        if not tokens:
            return
        counters = self._tally.counters
        counters.found[place] += tokens
        counters.saved_ps += self._added_ps(first, tokens)

    def _added_ps(self, first: int, tokens: int) -> int:
        area = tokens * (2 * first + tokens + 1)
        work = Work(0, 0, tokens, area)
        return max(bound.at(work) - bound.fixed for bound in self._bounds)
