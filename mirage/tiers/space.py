"""Places for blocks within a budget: slabs opened, closed and retired, and who would go. Pure."""

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
blocks begin at multiples. 4 KiB, on a GH200 64 KiB."""
SLABS = 128
"""Slabs that a budget is cut into at least, if they are not too small for a block."""
LARGEST_SLAB = 32 * MIB
SPARE_OFFSETS = 2
"""Offsets cost nothing: with twice the budget, holes between slabs are seldom too small."""


def span_of(budget: int) -> int:
    """Bytes of a region in which slabs of `budget` bytes lie."""
    return align_up(budget, PAGE) * SPARE_OFFSETS


def stride_of(block_bytes: int) -> int:
    """Bytes that the place of a block takes."""
    return align_up(block_bytes, PAGE)


class BlockSpace:
    """The blocks of an arena, each with its place in the memory. It evicts none."""

    def __init__(self, ledger: TierLedger, victims: Victims, backing: Backing) -> None:
        self._ledger, self._victims, self._backing = ledger, victims, backing
        self.slabs = Slabs(backing.offsets)
        self._blocks: dict[int, Block] = {}
        self._by_name: dict[Name, Block] = {}

    @property
    def owed(self) -> int:
        """Bytes in use above the budget.

        Pinned blocks hold them, or engines have not unlocked memory that belongs to no slab any
        more.
        """
        return max(0, self.used - self._ledger.budget)

    @property
    def used(self) -> int:
        """Bytes of memory that may be in use."""
        return self.slabs.counted + self.waiting

    @property
    def waiting(self) -> int:
        """Bytes that belong to no slab any more, and to nobody else yet."""
        return self._backing.waiting

    def enter(self, block: Block) -> None:
        """`block` is in the place that `take` gave."""
        self._blocks[block.offset] = block
        self._by_name[block.name] = block

    def give(self, block: Block) -> None:
        """The block's place is free."""
        del self._blocks[block.offset]
        if self._by_name.get(block.name) is block:
            del self._by_name[block.name]
        if (returned := self.slabs.give(block.offset)) is not None:
            self._backing.punch(returned)

    def take(self, stride: int) -> int | None:
        """A free place within the budget; None without."""
        while (offset := self.slabs.take(stride)) is None:
            if not self._open(stride):
                return None
        return offset

    def blocks_in(self, slab: BlockSlab) -> list[Block]:
        """Blocks of a slab, by their places."""
        return [self._blocks[offset] for offset in sorted(slab.used)]

    def next_victims(self, count: int) -> list[Block]:
        """Idle blocks that would go first, if the machine took them."""
        found: list[Block] = []
        for name in self._victims.order(self._victims.takeable(None, 0)):
            if len(found) >= count:
                break
            if self._by_name[name].idle:
                found.append(self._by_name[name])
        return found

    # -- room ---------------------------------------------------------------------------

    def _open(self, stride: int) -> bool:
        """A slab within the budget; empty ones of other sizes make room for it."""
        wanted = self._slab_blocks(stride) * stride
        if self.slabs.counted + wanted > self._ledger.budget:
            self.close_empty(self._ledger.budget - wanted)
        blocks = min(wanted, self._ledger.budget - self.used) // stride
        if blocks <= 0 or self.slabs.open(stride, blocks):
            return blocks > 0
        self.close_empty(0)  # there is memory, but torn
        return self.slabs.open(stride, blocks)

    def _slab_blocks(self, stride: int) -> int:
        blocks = max(1, min(LARGEST_SLAB, self._ledger.budget // SLABS) // stride)
        return align_up(blocks * stride, self._backing.granule) // stride

    def close_empty(self, most: int) -> None:
        """Until `most` bytes are counted, if empty slabs suffice for that."""
        for slab in self.slabs.empty():
            if self.slabs.counted <= most:
                break
            self._backing.punch(self.slabs.close(slab))

    def who_goes(self, taker: str, stride: int) -> list[Block]:
        """Blocks to evict for one of `taker`: one of that size, or all in a slab of another one.

        Empty if nothing may go.
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
        """True if there will be memory for a block without an eviction."""
        return self.waiting > 0 and self.slabs.counted + stride <= self._ledger.budget

    def _may_go(self, slab: BlockSlab, tenants: list[str]) -> bool:
        blocks = (self._blocks[offset] for offset in slab.used)
        return all(self._backing.may_go(block) and block.tenant in tenants for block in blocks)

    # -- shrinking ----------------------------------------------------------------------

    def to_retire(self) -> list[BlockSlab]:
        """Slabs, first to go first: without pinned blocks in the order of their first victim,
        then by the pinned blocks in them."""
        pinned = {slab: self._held_fast(slab) for slab in self.slabs.all() if not slab.retiring}
        order = self._victims.order(self._victims.takeable(None, 0))
        slabs = dict.fromkeys(self.slabs.of(self._by_name[name].offset) for name in order)
        rank = {slab: place for place, slab in enumerate(slabs)}
        return sorted(pinned, key=lambda s: (pinned[s], rank.get(s, len(rank)), s.offset))

    def _held_fast(self, slab: BlockSlab) -> int:
        return sum(not self._blocks[offset].idle for offset in slab.used)

    def retire(self, slab: BlockSlab) -> None:
        """The slab takes no new block, and goes with the last one in it."""
        for returned in self.slabs.retire(slab):
            self._backing.punch(returned)
        if not slab.used:
            self.slabs.close(slab)
