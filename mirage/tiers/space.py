"""Places for blocks within a budget: slabs are opened, closed and retired, and victims proposed.
Pure."""

from __future__ import annotations

import mmap
from itertools import islice

from mirage.tiers.backing import Backing
from mirage.tiers.blocks import Block, Name
from mirage.tiers.ledger import TierLedger
from mirage.tiers.slabs import BlockSlab, Slabs
from mirage.tiers.victims import Victims
from mirage.units import MIB, align_up

PAGE = mmap.PAGESIZE
"""Bytes of a page, the unit in which the system frees memory, drivers lock it and O_DIRECT reads:
blocks begin at multiples of it. 4 KiB, on a GH200 64 KiB."""
SLABS = 128
"""Least number of slabs that a budget is divided into, unless they would be too small for a
block."""
LARGEST_SLAB = 32 * MIB
SPARE_OFFSETS = 2
"""Ratio of offsets to the budget. Offsets cost nothing: with twice the budget, gaps between slabs
are seldom too small."""


def span_of(budget: int) -> int:
    """Return the size in bytes of a region for slabs of `budget` bytes: `SPARE_OFFSETS` times the
    budget in whole pages."""
    return align_up(budget, PAGE) * SPARE_OFFSETS


def stride_of(block_bytes: int) -> int:
    """Return the bytes that the place of a block takes: whole pages."""
    return align_up(block_bytes, PAGE)


class BlockSpace:
    """Blocks of an arena, each with its place in the memory. It proposes victims and evicts
    none."""

    def __init__(self, ledger: TierLedger, victims: Victims, backing: Backing) -> None:
        self._ledger, self._victims, self._backing = ledger, victims, backing
        self.slabs = Slabs(backing.offsets)
        self._blocks: dict[int, Block] = {}
        self._by_name: dict[Name, Block] = {}

    @property
    def owed(self) -> int:
        """Bytes in use above the budget.

        Pinned blocks hold them, or engines have not yet unlocked memory that belongs to no slab any
        more.
        """
        return max(0, self.used - self._ledger.budget)

    @property
    def used(self) -> int:
        """Bytes of memory that may be in use."""
        return self.slabs.counted + self.waiting

    @property
    def waiting(self) -> int:
        """Bytes that belong to no slab any more and are not free yet."""
        return self._backing.waiting

    def enter(self, block: Block) -> None:
        """Enter a block in the place that `take` returned."""
        self._blocks[block.offset] = block
        self._by_name[block.name] = block

    def give(self, block: Block) -> None:
        """Free the block's place."""
        del self._blocks[block.offset]
        if self._by_name.get(block.name) is block:
            del self._by_name[block.name]
        if (returned := self.slabs.give(block.offset)) is not None:
            self._backing.punch(returned)

    def take(self, stride: int) -> int | None:
        """Take a free place within the budget and return its offset; None if there is none."""
        while (offset := self.slabs.take(stride)) is None:
            if not self._open(stride):
                return None
        return offset

    def blocks_in(self, slab: BlockSlab) -> list[Block]:
        """Return the blocks of a slab, by their places."""
        return [self._blocks[offset] for offset in sorted(slab.used)]

    def next_victims(self, count: int) -> list[Block]:
        """Return up to `count` idle blocks that would be evicted first if the budget shrank."""
        found: list[Block] = []
        for name in self._victims.order(self._victims.takeable(None, 0)):
            if len(found) >= count:
                break
            if self._by_name[name].idle:
                found.append(self._by_name[name])
        return found

    # -- room ---------------------------------------------------------------------------

    def _open(self, stride: int) -> bool:
        """Open a slab within the budget; empty ones of other sizes are closed for it. False if
        there is no room."""
        wanted = self._slab_blocks(stride) * stride
        if self.slabs.counted + wanted > self._ledger.budget:
            self.close_empty(self._ledger.budget - wanted)
        blocks = min(wanted, self._ledger.budget - self.used) // stride
        if blocks <= 0 or self.slabs.open(stride, blocks):
            return blocks > 0
        self.close_empty(0)  # there is memory, but in pieces that are too small
        return self.slabs.open(stride, blocks)

    def _slab_blocks(self, stride: int) -> int:
        blocks = max(1, min(LARGEST_SLAB, self._ledger.budget // SLABS) // stride)
        return align_up(blocks * stride, self._backing.granule) // stride

    def close_empty(self, most: int) -> None:
        """Close empty slabs until at most `most` bytes are counted, or no empty slab is left."""
        for slab in self.slabs.empty():
            if self.slabs.counted <= most:
                break
            self._backing.punch(self.slabs.close(slab))

    def who_goes(self, taker: str, stride: int) -> list[Block]:
        """Return the blocks to evict for a block of `taker`: one block of that size, or all blocks
        in a slab of another size.

        Empty if no block may be evicted. A slab of another size stays while memory that is about to
        become free has room for the block.
        """
        tenants, comes = self._victims.takeable(taker, stride), self._comes(stride)
        for name in islice(self._victims.order(tenants), self._backing.most_looks):
            block = self._by_name[name]
            slab = self.slabs.of(block.offset)
            if not self._backing.may_go(block) or slab.retiring:
                continue
            if slab.stride == stride:
                return [block]
            if not comes and self._may_go(slab, tenants):
                return self.blocks_in(slab)
        return []

    def _comes(self, stride: int) -> bool:
        """True if memory for a block will become free without an eviction."""
        return self.waiting > 0 and self.slabs.counted + stride <= self._ledger.budget

    def _may_go(self, slab: BlockSlab, tenants: list[str]) -> bool:
        blocks = (self._blocks[offset] for offset in slab.used)
        return all(self._backing.may_go(block) and block.tenant in tenants for block in blocks)

    # -- shrinking ----------------------------------------------------------------------

    def to_retire(self) -> list[BlockSlab]:
        """Return the slabs that may retire, first to retire first: fewest pinned blocks first; of
        equals, the slab whose first block would be evicted first."""
        pinned = {slab: self._held_fast(slab) for slab in self.slabs.all() if not slab.retiring}
        order = self._victims.order(self._victims.takeable(None, 0))
        slabs = dict.fromkeys(self.slabs.of(self._by_name[name].offset) for name in order)
        rank = {slab: place for place, slab in enumerate(slabs)}
        return sorted(pinned, key=lambda s: (pinned[s], rank.get(s, len(rank)), s.offset))

    def _held_fast(self, slab: BlockSlab) -> int:
        return sum(not self._blocks[offset].idle for offset in slab.used)

    def retire(self, slab: BlockSlab) -> None:
        """Take no new block into the slab; it is closed when its last block leaves."""
        for returned in self.slabs.retire(slab):
            self._backing.punch(returned)
        if not slab.used:
            self.slabs.close(slab)
