"""Decision how long a request waits for the pool. No clock, no I/O."""

from __future__ import annotations

from mirage.tiers.contract import ANSWER_S, Lookup

COMING_S = 1.0
"""Longest time in seconds that a request waits for blocks that are being copied for it."""


class Patience:
    """Decides if a request waits longer. A block that does not come in time is a miss.

    A pool that has let one request wait in vain makes no other request wait, until it answers
    again.
    """

    def __init__(self, answer_s: float = ANSWER_S, coming_s: float = COMING_S) -> None:
        self._answer_s, self._coming_s = answer_s, coming_s
        self._silent = False

    def waits(self, found: Lookup, waited_s: float) -> bool:
        """True if a request that has waited `waited_s` seconds goes on waiting for a block; `found`
        is the pool's state of the block's key. Also notes if the pool answers in time."""
        if found is Lookup.UNKNOWN:
            self._silent |= waited_s >= self._answer_s
            return not self._silent
        self._silent = False
        on_its_way = found in (Lookup.BELOW, Lookup.RISING, Lookup.COMING)
        return on_its_way and waited_s < self._coming_s
