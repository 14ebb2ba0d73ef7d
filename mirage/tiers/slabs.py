"""Offsets of a region cut into slabs, each for blocks of one size. Pure.

Tenants have blocks of different sizes. Were they mixed, what one size leaves would fit no other;
so blocks of one size lie together in a slab, and only whole slabs change hands. Offsets cost
nothing, memory does: it is counted for open slabs, for it may be behind all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mirage.tiers.holes import ByteRange


class Offsets(Protocol):
    """Source of slabs: free ranges (`mirage.tiers.holes.Holes`) of a region, or leases of peers."""

    @property
    def sizes(self) -> list[int]:
        """Bytes of each free run."""

    def take(self, nbytes: int) -> int | None:
        """The offset of so many bytes; None if there is no room."""

    def give(self, freed: ByteRange) -> None:
        """The bytes are free again."""


@dataclass(eq=False)
class BlockSlab:
    """`blocks` places of `stride` bytes each from `offset` on."""

    offset: int
    stride: int
    blocks: int
    free: list[int] = field(default_factory=list)
    """Offsets of the region."""
    used: set[int] = field(default_factory=set)
    """Offsets of the region."""
    retiring: bool = False
    """It takes no new block and gives back the memory of each one that leaves."""

    @property
    def nbytes(self) -> int:
        return self.stride * self.blocks

    @property
    def counted(self) -> int:
        """Bytes of memory that may be behind it."""
        return self.stride * len(self.used) if self.retiring else self.nbytes


class Fragmentation(NamedTuple):
    """Bytes that are counted and used by nobody, and how the free offsets are torn."""

    unused: int
    largest_free: int
    free: int


def runs(offsets: list[int], stride: int) -> list[ByteRange]:
    """Places of `stride` bytes, those that touch as one."""
    found: list[ByteRange] = []
    for offset in sorted(offsets):
        if found and found[-1].offset + found[-1].nbytes == offset:
            found[-1] = ByteRange(found[-1].offset, found[-1].nbytes + stride)
        else:
            found.append(ByteRange(offset, stride))
    return found


class Slabs:
    """`counted` is the memory that may be in use of `offsets`."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._open: dict[int, BlockSlab] = {}
        """By their first offset."""
        self._of: dict[int, BlockSlab] = {}
        """By the offset of each block in use."""
        self._empty: dict[int, BlockSlab] = {}
        """Slabs without a block, by their first offset."""
        self._having: dict[int, dict[int, BlockSlab]] = {}
        """Slabs with a free place, by stride and first offset: few, of many that are full."""
        self._current: dict[int, BlockSlab] = {}
        """By stride: where blocks are taken from."""
        self.counted = 0

    def of(self, offset: int) -> BlockSlab:
        """The slab of a block in use. Raises `KeyError`."""
        return self._of[offset]

    def at(self, offset: int) -> BlockSlab:
        """The open slab that begins there. Raises `KeyError`."""
        return self._open[offset]

    def all(self) -> list[BlockSlab]:
        """Every open slab."""
        return list(self._open.values())

    def empty(self) -> list[BlockSlab]:
        """Open slabs without a block."""
        return list(self._empty.values())

    def fragmentation(self) -> Fragmentation:
        used = sum(slab.stride * len(slab.used) for slab in self._open.values())
        sizes = self._offsets.sizes
        return Fragmentation(self.counted - used, max(sizes, default=0), sum(sizes))

    # -- slabs --------------------------------------------------------------------------

    def open(self, stride: int, blocks: int) -> bool:
        """A new slab; False if there is no room."""
        offset = self._offsets.take(stride * blocks)
        if offset is None:
            return False
        places = [offset + stride * number for number in reversed(range(blocks))]
        slab = BlockSlab(offset, stride, blocks, places)
        self._open[offset] = self._empty[offset] = slab
        self._having.setdefault(stride, {})[offset] = slab
        self.counted += stride * blocks
        return True

    def close(self, slab: BlockSlab) -> ByteRange:
        """An empty slab's offsets are for others; its memory can be given back."""
        if slab.used:
            raise ValueError(f"the slab at {slab.offset} still has {len(slab.used)} blocks")
        del self._open[slab.offset]
        self._empty.pop(slab.offset, None)
        self._having[slab.stride].pop(slab.offset, None)
        if self._current.get(slab.stride) is slab:
            del self._current[slab.stride]
        self.counted -= slab.counted
        self._offsets.give(ByteRange(slab.offset, slab.nbytes))
        return ByteRange(slab.offset, slab.nbytes)

    def retire(self, slab: BlockSlab) -> list[ByteRange]:
        """The slab takes no new block; what can be given back at once."""
        before = slab.counted
        slab.retiring = True
        self.counted += slab.counted - before
        ranges = runs(slab.free, slab.stride)
        slab.free.clear()
        self._having[slab.stride].pop(slab.offset, None)
        return ranges

    # -- blocks -------------------------------------------------------------------------

    def take(self, stride: int) -> int | None:
        """A place in an open slab, the fullest first, so that others run empty; None without."""
        slab = self._current.get(stride)
        if slab is None or not slab.free:
            having = self._having.get(stride)
            if not having:
                return None
            slab = self._current[stride] = min(having.values(), key=lambda s: len(s.free))
        offset = slab.free.pop()
        if not slab.free:
            del self._having[stride][slab.offset]
        slab.used.add(offset)
        self._empty.pop(slab.offset, None)
        self._of[offset] = slab
        return offset

    def give(self, offset: int) -> ByteRange | None:
        """A place is free again; what can be given back of it, None if it is kept for others."""
        slab = self._of.pop(offset)
        slab.used.remove(offset)
        if not slab.retiring:
            slab.free.append(offset)
            self._having[slab.stride][slab.offset] = slab
            if not slab.used:
                self._empty[slab.offset] = slab
            return None
        self.counted -= slab.stride
        if not slab.used:
            self.close(slab)
        return ByteRange(offset, slab.stride)
