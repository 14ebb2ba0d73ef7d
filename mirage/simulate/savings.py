"""Tokens that need not be computed since they were found, by their place, and the time that they
save.
"""

from __future__ import annotations

from mirage.simulate.roofline import BoundedSteps
from mirage.simulate.tally import Tally


class Savings:
    """Savings of one engine."""

    def __init__(self, tally: Tally, roofline: BoundedSteps) -> None:
        self._tally, self._roofline = tally, roofline

    def add(self, place: str, first: int, tokens: int) -> None:
        """`tokens` of a prompt, from number `first` on, were found at a `place`.

        They would have shared steps, so their time is what they add to one.
        """
        if not tokens:
            return
        counters = self._tally.counters
        counters.found[place] += tokens
        counters.saved_ps += self._roofline.added_ps(first, tokens)
