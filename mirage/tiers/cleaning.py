"""What host memory would lose next is copied below beforehand: eviction never waits. Pure."""

from __future__ import annotations

from collections.abc import Callable

from mirage.tiers.below import Below, Nothing
from mirage.tiers.blocks import Action, Name, Sink
from mirage.tiers.held import Held
from mirage.tiers.holes import Range

CLEAN_AHEAD = 64
"""Blocks that would go next and are copied below at a time; a quarter of all at most."""


class Cleaning:
    """`act` takes what is to be done."""

    def __init__(self, held: Held, below: Below, act: Callable[[Action], None]) -> None:
        self._held, self._below, self._act = held, below, act
        self._sinking = 0
        """Blocks that are being copied below: never so many that nothing can be evicted."""

    def ahead(self, budget: int) -> None:
        """Of what would go next, begin to copy down what was not offered there."""
        slabs = self._held.space.slabs
        if isinstance(self._below, Nothing) or slabs.counted < budget / 2:
            return
        ahead = min(CLEAN_AHEAD, len(self._held) // 4)
        for block in self._held.space.next_victims(ahead - self._sinking):
            if not block.offered:
                block.offered = block.sinking = True
                self._sinking += 1
                self._act(Sink(block.name, Range(block.offset, block.nbytes)))

    def sunk(self, name: Name) -> None:
        """A copy down has ended, or did not begin."""
        block = self._held.get(name)
        if block is not None and block.sinking:
            block.sinking = False
            self._sinking -= 1
            self._held.settle(block)
