"""Offsets of a region cut into slabs, each for blocks of one size. Pure.

Tenants have blocks of different sizes. Were they mixed, what one size leaves would fit no other;
so blocks of one size lie together in a slab, and only whole slabs change hands. Offsets cost
nothing, memory does: it is counted for open slabs, for it may be behind all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Range(NamedTuple):
    """Bytes of the region."""

    offset: int
    nbytes: int


@dataclass(eq=False)
class Slab:
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


def runs(offsets: list[int], stride: int) -> list[Range]:
    """Places of `stride` bytes, those that touch as one."""
    found: list[Range] = []
    for offset in sorted(offsets):
        if found and found[-1].offset + found[-1].nbytes == offset:
            found[-1] = Range(found[-1].offset, found[-1].nbytes + stride)
        else:
            found.append(Range(offset, stride))
    return found


class Slabs:
    """`span` bytes of offsets. `counted` is the memory that may be in use of them."""

    def __init__(self, span: int) -> None:
        self._holes: list[Range] = [Range(0, span)]
        """Sorted, and no two of them touch."""
        self._open: dict[int, Slab] = {}
        """By their first offset."""
        self._of: dict[int, Slab] = {}
        """By the offset of each block in use."""
        self._empty: dict[int, Slab] = {}
        """Those without a block, by their first offset."""
        self._having: dict[int, dict[int, Slab]] = {}
        """Those with a free place, by stride and first offset: few, of many that are full."""
        self._current: dict[int, Slab] = {}
        """By stride: where blocks are taken from."""
        self.counted = 0

    def of(self, offset: int) -> Slab:
        """The slab of a block in use. Raises `KeyError`."""
        return self._of[offset]

    def all(self) -> list[Slab]:
        """Every open slab."""
        return list(self._open.values())

    def empty(self) -> list[Slab]:
        """Open slabs without a block."""
        return list(self._empty.values())

    def fragmentation(self) -> Fragmentation:
        used = sum(slab.stride * len(slab.used) for slab in self._open.values())
        largest = max((hole.nbytes for hole in self._holes), default=0)
        return Fragmentation(self.counted - used, largest, sum(h.nbytes for h in self._holes))

    # -- slabs --------------------------------------------------------------------------

    def open(self, stride: int, blocks: int) -> bool:
        """A new slab in the smallest hole that it fits into; False if there is none."""
        nbytes = stride * blocks
        fitting = [hole for hole in self._holes if hole.nbytes >= nbytes]
        if not fitting:
            return False
        hole = min(fitting, key=lambda hole: (hole.nbytes, hole.offset))
        self._holes.remove(hole)
        if hole.nbytes > nbytes:
            self._holes.append(Range(hole.offset + nbytes, hole.nbytes - nbytes))
            self._holes.sort()
        places = [hole.offset + stride * number for number in reversed(range(blocks))]
        slab = Slab(hole.offset, stride, blocks, places)
        self._open[slab.offset] = self._empty[slab.offset] = slab
        self._having.setdefault(stride, {})[slab.offset] = slab
        self.counted += nbytes
        return True

    def close(self, slab: Slab) -> Range:
        """An empty slab's offsets are for others; its memory can be given back."""
        if slab.used:
            raise ValueError(f"the slab at {slab.offset} still has {len(slab.used)} blocks")
        del self._open[slab.offset]
        self._empty.pop(slab.offset, None)
        self._having[slab.stride].pop(slab.offset, None)
        if self._current.get(slab.stride) is slab:
            del self._current[slab.stride]
        self.counted -= slab.counted
        self._join(Range(slab.offset, slab.nbytes))
        return Range(slab.offset, slab.nbytes)

    def retire(self, slab: Slab) -> list[Range]:
        """It takes no new block; what can be given back at once."""
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

    def give(self, offset: int) -> Range | None:
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
        return Range(offset, slab.stride)

    def _join(self, hole: Range) -> None:
        """Add a hole to those that it touches."""
        start, end = hole.offset, hole.offset + hole.nbytes
        kept = []
        for other in self._holes:
            if other.offset + other.nbytes == start:
                start = other.offset
            elif other.offset == end:
                end = other.offset + other.nbytes
            else:
                kept.append(other)
        self._holes = sorted([*kept, Range(start, end - start)])
