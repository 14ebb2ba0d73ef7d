"""Offsets of a region cut into slabs, each for blocks of one size. Pure.

Tenants have blocks of different sizes. If sizes were mixed, the gap that a block leaves would not
fit blocks of another size. So blocks of one size are together in a slab, and only whole slabs
change their size. Offsets cost nothing, but memory does: it is counted for all of an open slab,
since there may be memory behind every byte of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mirage.tiers.holes import ByteRange


class Offsets(Protocol):
    """Source of slabs: free ranges (`mirage.tiers.holes.Holes`) of a region, or leases of peers."""

    @property
    def sizes(self) -> list[int]:
        """Bytes of each free range."""

    def take(self, nbytes: int) -> int | None:
        """Take `nbytes` bytes and return their offset; None if there is no room."""

    def give(self, freed: ByteRange) -> None:
        """Make the bytes free again."""


@dataclass(eq=False)
class BlockSlab:
    """Slab of `blocks` places of `stride` bytes each from `offset` on."""

    offset: int
    stride: int
    blocks: int
    free: list[int] = field(default_factory=list)
    """Offsets of free places in the region."""
    used: set[int] = field(default_factory=set)
    """Offsets of used places in the region."""
    retiring: bool = False
    """True if it takes no new block and gives back the memory of each block that leaves."""

    @property
    def nbytes(self) -> int:
        return self.stride * self.blocks

    @property
    def counted(self) -> int:
        """Bytes of memory that may be behind it."""
        return self.stride * len(self.used) if self.retiring else self.nbytes


class Fragmentation(NamedTuple):
    """Bytes of counted memory that are in no block (`unused`), and bytes of free offsets: in the
    largest range, and in all."""

    unused: int
    largest_free: int
    free: int


def runs(offsets: list[int], stride: int) -> list[ByteRange]:
    """Return the ranges of places of `stride` bytes; adjacent places are merged."""
    found: list[ByteRange] = []
    for offset in sorted(offsets):
        if found and found[-1].offset + found[-1].nbytes == offset:
            found[-1] = ByteRange(found[-1].offset, found[-1].nbytes + stride)
        else:
            found.append(ByteRange(offset, stride))
    return found


class Slabs:
    """Open slabs of `offsets`. `counted` is the memory in bytes that may be in use."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._open: dict[int, BlockSlab] = {}
        """Open slabs by the offset at which they begin."""
        self._of: dict[int, BlockSlab] = {}
        """Slab of each used place, by the place's offset."""
        self._empty: dict[int, BlockSlab] = {}
        """Slabs without a block, by the offset at which they begin."""
        self._having: dict[int, dict[int, BlockSlab]] = {}
        """Slabs with a free place, by the bytes of a place (stride) and the offset at which the
        slab begins. They are few, while full slabs are many."""
        self._current: dict[int, BlockSlab] = {}
        """Slab from which places are taken, by the bytes of a place (stride)."""
        self.counted = 0

    def of(self, offset: int) -> BlockSlab:
        """Return the slab of a used place. Raise `KeyError` if there is none."""
        return self._of[offset]

    def at(self, offset: int) -> BlockSlab:
        """Return the open slab that begins at `offset`. Raise `KeyError` if there is none."""
        return self._open[offset]

    def all(self) -> list[BlockSlab]:
        """Return every open slab."""
        return list(self._open.values())

    def empty(self) -> list[BlockSlab]:
        """Return the open slabs without a block."""
        return list(self._empty.values())

    def fragmentation(self) -> Fragmentation:
        used = sum(slab.stride * len(slab.used) for slab in self._open.values())
        sizes = self._offsets.sizes
        return Fragmentation(self.counted - used, max(sizes, default=0), sum(sizes))

    # -- slabs --------------------------------------------------------------------------

    def open(self, stride: int, blocks: int) -> bool:
        """Open a new slab of `blocks` places of `stride` bytes; False if there is no room."""
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
        """Close an empty slab and return its range, whose memory can be given back. Raise
        `ValueError` if it has blocks."""
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
        """Take no new block into the slab; return the ranges that can be given back immediately."""
        before = slab.counted
        slab.retiring = True
        self.counted += slab.counted - before
        ranges = runs(slab.free, slab.stride)
        slab.free.clear()
        self._having[slab.stride].pop(slab.offset, None)
        return ranges

    # -- blocks -------------------------------------------------------------------------

    def take(self, stride: int) -> int | None:
        """Take a place in an open slab and return its offset, the fullest slab first, so that
        others become empty; None if no open slab has room."""
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
        """Free a place; return the range that can be given back, None if the slab keeps it."""
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
