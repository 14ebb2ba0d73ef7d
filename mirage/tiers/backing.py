"""Memory behind the offsets of an arena, which differs between host memory and peers. Pure."""

from __future__ import annotations

from typing import Protocol

from mirage.tiers.blocks import Block
from mirage.tiers.holes import ByteRange
from mirage.tiers.locks import Locks
from mirage.tiers.slabs import Offsets


class Backing(Protocol):
    """Memory of one medium. It knows no arena; arenas ask it for places."""

    @property
    def offsets(self) -> Offsets:
        """Source of the memory that slabs are cut from."""

    @property
    def granule(self) -> int:
        """Unit of the memory in bytes: slabs of multiples of it waste least."""

    @property
    def most_looks(self) -> int | None:
        """Largest number of blocks that are looked at for room; None for all."""

    @property
    def waiting(self) -> int:
        """Bytes that belong to no slab any more and are not free yet."""

    def largest(self, budget: int) -> int:
        """Return the size of the largest block that could find room; no block is evicted for a
        larger one."""

    def may_go(self, block: Block) -> bool:
        """True if a block may be evicted for another one."""

    def rescue(self, block: Block) -> bool:
        """True if an idle block whose memory is wanted back is now copied elsewhere before it
        goes."""

    def punch(self, memory: ByteRange) -> None:
        """Give back memory that no block uses."""


class HostBacking:
    """Host memory, with slabs that engines have locked."""

    granule = 1
    most_looks: int | None = None

    def __init__(self, locks: Locks) -> None:
        self.offsets = locks

    @property
    def waiting(self) -> int:
        """Bytes of holes in slabs that engines still have locked."""
        return self.offsets.waiting

    def largest(self, budget: int) -> int:
        """Return `budget`: a block may take all of it."""
        return budget

    def may_go(self, block: Block) -> bool:
        """True for every idle block: those worth keeping were copied below beforehand."""
        return block.idle

    def rescue(self, block: Block) -> bool:
        """Return False: there is no time for a copy below."""
        return False

    def punch(self, memory: ByteRange) -> None:
        """Give a slab's memory back as soon as no engine has it locked."""
        self.offsets.punch(memory)
