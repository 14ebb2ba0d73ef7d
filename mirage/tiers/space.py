"""Places for blocks within a budget: slabs opened, evicted from, closed and retired. Pure."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from itertools import islice

from mirage.tiers.blocks import Block, Name
from mirage.tiers.holes import ByteRange, Holes
from mirage.tiers.ledger import TierLedger
from mirage.tiers.slabs import BlockSlab, Offsets, Slabs
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
    """All blocks by their places. `evict` forgets a block and gives its place back by `give`.

    Memory to be given back is handed to `punch`. `offsets` are all that a region has, by default.
    """

    most_looks: int | None = None
    """Blocks that are looked at for room; all by default."""
    granule = 1
    """Bytes that memory comes in: slabs of such sizes waste the least."""

    def __init__(
        self,
        ledger: TierLedger,
        victims: Victims,
        evict: Callable[[Block], None],
        punch: Callable[[ByteRange], None],
        offsets: Offsets | None = None,
    ) -> None:
        self.may_go: Callable[[Block], bool] = lambda block: block.idle
        """True if a block may be evicted for another one."""
        self.leave = evict
        """Called with each idle block whose memory is wanted back."""
        self.largest: Callable[[], int] = lambda: ledger.budget
        """Bytes of a block that there could be room for: for a larger one nobody has to leave."""
        self.waiting: Callable[[], int] = lambda: 0
        """Bytes that belong to no slab any more, and to nobody else yet."""
        self._ledger, self._victims = ledger, victims
        self._evict, self._punch = evict, punch
        self.span = span_of(ledger.budget)
        self.slabs = Slabs(offsets or Holes(self.span))
        self._blocks: dict[int, Block] = {}
        self._by_name: dict[Name, Block] = {}

    @property
    def owed(self) -> int:
        """Bytes over the budget, which pinned blocks hold, or engines that have them locked."""
        return max(0, self.used - self._ledger.budget)

    @property
    def used(self) -> int:
        """Bytes of memory that may be in use."""
        return self.slabs.counted + self.waiting()

    def enter(self, block: Block) -> None:
        """`block` is in the place that `find` gave."""
        self._blocks[block.offset] = block
        self._by_name[block.name] = block

    def give(self, block: Block) -> None:
        """Its place is free."""
        del self._blocks[block.offset]
        if self._by_name.get(block.name) is block:
            del self._by_name[block.name]
        if (returned := self.slabs.give(block.offset)) is not None:
            self._punch(returned)

    def find(self, taker: str, stride: int) -> int | None:
        """A place for a block of `taker`, which others may have to leave; None without."""
        if stride > self.largest():
            return None
        while (offset := self.slabs.take(stride)) is None:
            if not self._open(stride) and not self._make_room(taker, stride):
                return None
        return offset

    def resize(self, budget: int) -> None:
        """Down to `budget`, idle blocks at once, others when they are. Raises `ValueError`."""
        if span_of(budget) > self.span:
            raise ValueError(f"{budget} bytes: the pool was made for {self.span // SPARE_OFFSETS}")
        self._ledger.resize(budget)
        self._close_empty(budget)
        for slab in self.to_retire():
            if self.slabs.counted <= budget:
                break
            self._retire(slab)

    def drain(self, slab: BlockSlab) -> None:
        """Its memory is wanted back: idle blocks leave at once, others when they are idle."""
        if not slab.retiring:
            self._retire(slab)

    def blocks_in(self, slab: BlockSlab) -> list[Block]:
        """By their places."""
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
            self._close_empty(self._ledger.budget - wanted)
        blocks = min(wanted, self._ledger.budget - self.used) // stride
        if blocks <= 0 or self.slabs.open(stride, blocks):
            return blocks > 0
        self._close_empty(0)  # there is memory, but torn
        return self.slabs.open(stride, blocks)

    def _slab_blocks(self, stride: int) -> int:
        blocks = max(1, min(LARGEST_SLAB, self._ledger.budget // SLABS) // stride)
        return align_up(blocks * stride, self.granule) // stride

    def _close_empty(self, most: int) -> None:
        """Until `most` bytes are counted, if empty slabs suffice for that."""
        for slab in self.slabs.empty():
            if self.slabs.counted <= most:
                break
            self._punch(self.slabs.close(slab))

    def _make_room(self, taker: str, stride: int) -> bool:
        """Evict one block of that size, or a slab of another one; False if nothing may go."""
        tenants, comes = self._victims.takeable(taker, stride), self._comes(stride)
        for name in islice(self._victims.order(tenants), self.most_looks):
            block = self._by_name[name]
            slab = self.slabs.of(block.offset)
            if not self.may_go(block) or slab.retiring:
                continue
            if slab.stride == stride:
                self._evict(block)
                return True
            if not comes and self._may_go(slab, tenants):
                self._empty(slab)
                return True
        return False

    def _comes(self, stride: int) -> bool:
        """True if there will be memory for a block without an eviction."""
        return self.waiting() > 0 and self.slabs.counted + stride <= self._ledger.budget

    def _may_go(self, slab: BlockSlab, tenants: list[str]) -> bool:
        blocks = (self._blocks[offset] for offset in slab.used)
        return all(self.may_go(block) and block.tenant in tenants for block in blocks)

    def _empty(self, slab: BlockSlab, go: Callable[[Block], None] | None = None) -> None:
        """All of its idle blocks go."""
        for offset in sorted(slab.used):
            if self._blocks[offset].idle:
                (go or self._evict)(self._blocks[offset])

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

    def _retire(self, slab: BlockSlab) -> None:
        self._empty(slab, self.leave)
        for returned in self.slabs.retire(slab):
            self._punch(returned)
        if not slab.used:
            self.slabs.close(slab)
