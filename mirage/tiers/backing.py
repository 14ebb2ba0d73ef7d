"""Memory behind the offsets of an arena, which differs between host memory and peers. Pure."""

from __future__ import annotations

from typing import Protocol

from mirage.tiers.blocks import Block
from mirage.tiers.holes import ByteRange
from mirage.tiers.locks import Locks
from mirage.tiers.slabs import Offsets


class Backing(Protocol):
    """Memory of one medium, from which the arena of that medium cuts slabs. It does not know this
    arena."""

    @property
    def offsets(self) -> Offsets:
        """Source of the memory that slabs are cut from."""

    @property
    def granule(self) -> int:
        """Unit of the memory in bytes: slabs of multiples of it waste least."""

    @property
    def most_looks(self) -> int | None:
        """Largest number of blocks that are examined as victims for a new one; None for all."""

    @property
    def waiting(self) -> int:
        """Bytes that belong to no slab any more and are not free yet."""

    def largest(self, budget: int) -> int:
        """Return the bytes of the largest block that can be stored, others evicted if necessary,
        with `budget` bytes in all. An arena refuses a larger block without evicting any."""

    def may_go(self, block: Block) -> bool:
        """True if a block may be evicted for another one."""

    def rescue(self, block: Block) -> bool:
        """Begin to copy an idle block elsewhere before it goes, since its memory is wanted back;
        False if it goes without a copy."""

    def punch(self, memory: ByteRange) -> None:
        """Give back memory that no block uses."""


class HostBacking:
    """Host memory, with slabs that engines have page-locked."""

    granule = 1
    most_looks: int | None = None

    def __init__(self, locks: Locks) -> None:
        self.offsets = locks

    @property
    def waiting(self) -> int:
        """Bytes of holes in slabs that engines still have page-locked."""
        return self.offsets.waiting

    def largest(self, budget: int) -> int:
        """Return `budget`: a block may take all of it."""
        return budget

    def may_go(self, block: Block) -> bool:
        """True for every idle block: those worth keeping were copied to the tier below before."""
        return block.idle

    def rescue(self, block: Block) -> bool:
        """Return False: there is no time for a copy to the tier below."""
        return False

    def punch(self, memory: ByteRange) -> None:
        """Give a slab's memory back as soon as no engine has it page-locked."""
        self.offsets.punch(memory)
