"""Tokens that were found in a cache and not computed, by place, and the time that this saves."""

from __future__ import annotations

from mirage.simulate.roofline import BoundedSteps
from mirage.simulate.tally import Tally


class Savings:
    """Prompt tokens that one engine found in a cache instead of computing them, and the compute
    time that this saved; both are added to `tally`."""

    def __init__(self, tally: Tally, roofline: BoundedSteps) -> None:
        self._tally, self._roofline = tally, roofline

    def add(self, place: str, first: int, tokens: int) -> None:
        """Note that `tokens` tokens of a prompt, from number `first` on, were found at `place`.

        They would have shared steps with others, so the time saved is the time that they add to a
        step.
        """
        if not tokens:
            return
        counters = self._tally.counters
        counters.found[place] += tokens
        counters.saved_ps += self._roofline.added_ps(first, tokens)
