"""Copies to the tier below of blocks that host memory will evict next, made beforehand. Pure.

They are made before the memory is needed, so that eviction never waits. Before the pool ends the
other blocks are copied too, as far as the time and the disk suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mirage.tiers.arena import Arena
from mirage.tiers.below import Below, Nothing
from mirage.tiers.blocks import Action, Block, Name, Sink
from mirage.tiers.holes import ByteRange
from mirage.tiers.ssd.record import cell_bytes

CLEAN_AHEAD = 64
"""Largest number of blocks that are copied to the tier below at a time; at most a quarter of the
blocks in host memory."""


class Cleaning:
    """Copies to the tier below, made before host memory needs the blocks' places; `act` takes the
    orders."""

    def __init__(self, host: Arena, below: Below, act: Callable[[Action], None]) -> None:
        self._host, self._below, self._act = host, below, act
        self.sinking = 0
        """Number of blocks that are being copied to the tier below. It is bounded, so that other
        blocks can be evicted."""

    def ahead(self, budget: int) -> None:
        """Begin to copy to the tier below the blocks that would be evicted next and were not
        offered to it before. Do nothing while less than half of `budget` bytes is in use."""
        slabs = self._host.space.slabs
        if isinstance(self._below, Nothing) or slabs.counted < budget / 2:
            return
        ahead = min(CLEAN_AHEAD, len(self._host) // 4)
        for block in self._host.space.next_victims(ahead - self.sinking):
            if not block.offered:
                self._sink(block)

    def unsaved(self, most_bytes: int) -> list[Name]:
        """Return the names of idle blocks in host memory that the tier below lacks; those first
        that would be evicted last.

        The blocks looked at take up to `most_bytes` of that tier's disk together. Among them are
        those that the tier has already: it evicts these last from now on.
        """
        there: list[Name] = []
        found: list[Name] = []
        for block in reversed(self._host.space.next_victims(len(self._host))):
            most_bytes -= cell_bytes(block.nbytes)
            if most_bytes < 0:
                break
            below = self._below.has(block.name, block.nbytes)
            (there if below else found).append(block.name)
        self._below.keep(reversed(there))
        return found

    def save(self, names: Iterable[Name]) -> None:
        """Begin to copy these blocks to the tier below, if they are still in host memory and
        idle."""
        for name in names:
            block = self._host.get(name)
            if block is not None and block.idle:
                self._sink(block)

    def sunk(self, name: Name) -> None:
        """Note that the copy of a block to the tier below has ended, or did not begin."""
        block = self._host.get(name)
        if block is not None and block.sinking:
            block.sinking = False
            self.sinking -= 1
            self._host.settle(block)

    def _sink(self, block: Block) -> None:
        block.offered = block.sinking = True
        self.sinking += 1
        self._act(Sink(block.name, ByteRange(block.offset, block.nbytes), block.tenant))
