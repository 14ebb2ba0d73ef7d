"""Slabs of host memory that engines have page-locked for their devices. Pure.

A device goes on using page-locked memory even after a hole was punched there, and the operating
system gets that memory only when it is unlocked. So a hole in a page-locked slab waits until no
engine has the slab page-locked any more; if the slab is closed, its offsets wait as well.
"""

from __future__ import annotations

from collections.abc import Callable

from mirage.tiers.blocks import Action, Punch, Unlock
from mirage.tiers.holes import ByteRange, Holes
from mirage.tiers.lending.pieces import RangeMap
from mirage.tiers.slabs import BlockSlab


class Locks:
    """Source of slabs over `span` bytes; `act` takes the orders `Punch` and `Unlock`."""

    def __init__(self, span: int, act: Callable[[Action], None]) -> None:
        self._free, self._act = Holes(span), act
        self._locked: RangeMap[BlockSlab] = RangeMap()
        self._holes: dict[int, list[ByteRange]] = {}
        """Ranges whose memory is to be given back (holes), by the offset at which their slab
        begins; engines were told to unlock it."""
        self._closed: dict[int, ByteRange] = {}
        """Ranges of closed slabs, by the offset at which they begin. A range becomes free when its
        slab is unlocked."""

    def lock(self, slab: BlockSlab) -> ByteRange | None:
        """Return the range of bytes that an engine may page-lock from now on; None if memory of
        the slab is wanted back."""
        if slab.retiring or slab.offset in self._holes:
            return None
        if self._locked.get(slab.offset) is None:
            self._locked.add(slab.offset, slab)
        return ByteRange(slab.offset, slab.nbytes)

    def let_go(self, start: int) -> None:
        """Note that no engine has the slab that begins at byte `start` page-locked any more: punch
        the holes that waited for this and, if the slab is closed, make its bytes free. A second
        call does nothing."""
        if self._locked.pop(start) is None:
            return
        for hole in self._holes.pop(start, ()):
            self._act(Punch(hole))
        if (closed := self._closed.pop(start, None)) is not None:
            self._free.give(closed)

    @property
    def waiting(self) -> int:
        """Bytes that are in no block and that page-locked slabs still hold."""
        return sum(hole.nbytes for holes in self._holes.values() for hole in holes)

    def punch(self, hole: ByteRange) -> None:
        """Give back memory of one slab as soon as no engine has it page-locked."""
        if (found := self._locked.at(hole.offset)) is None:
            self._act(Punch(hole))
        else:
            self._ask_for(found[0]).append(hole)

    @property
    def sizes(self) -> list[int]:
        """Bytes of each free range."""
        return self._free.sizes

    def take(self, nbytes: int) -> int | None:
        """Take `nbytes` free bytes and return their offset; None if there is no room."""
        return self._free.take(nbytes)

    def give(self, freed: ByteRange) -> None:
        """Make a slab's bytes free again; if it is page-locked, when it is unlocked."""
        if self._locked.get(freed.offset) is None:
            self._free.give(freed)
        else:
            self._ask_for(freed.offset)
            self._closed[freed.offset] = freed

    def _ask_for(self, start: int) -> list[ByteRange]:
        """Return the list of holes that wait for a slab; engines are told once to unlock it."""
        if start not in self._holes:
            self._holes[start] = []
            self._act(Unlock(start))
        return self._holes[start]
