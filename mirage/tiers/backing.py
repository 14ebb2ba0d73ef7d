"""The memory behind the offsets of an arena: what host memory and peers do differently. Pure."""

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
        """Memory that slabs are cut from."""

    @property
    def granule(self) -> int:
        """Bytes that memory comes in: slabs of such sizes waste the least."""

    @property
    def most_looks(self) -> int | None:
        """Blocks that are looked at for room; None for all."""

    @property
    def waiting(self) -> int:
        """Bytes that belong to no slab any more, and to nobody else yet."""

    def largest(self, budget: int) -> int:
        """Bytes of a block that there could be room for: for a larger one nobody has to leave."""

    def may_go(self, block: Block) -> bool:
        """True if a block may be evicted for another one."""

    def rescue(self, block: Block) -> bool:
        """True if an idle block whose memory is wanted back is being copied elsewhere first."""

    def punch(self, memory: ByteRange) -> None:
        """Give memory back of which no block is left."""


class HostBacking:
    """Host memory, of which engines have locked slabs."""

    granule = 1
    most_looks: int | None = None

    def __init__(self, locks: Locks) -> None:
        self.offsets = locks

    @property
    def waiting(self) -> int:
        """Bytes of holes in slabs that engines have locked still."""
        return self.offsets.waiting

    def largest(self, budget: int) -> int:
        """All of it."""
        return budget

    def may_go(self, block: Block) -> bool:
        """True of every idle one: what would be missed was copied below beforehand."""
        return block.idle

    def rescue(self, block: Block) -> bool:
        """False: there is no time for a copy below."""
        return False

    def punch(self, memory: ByteRange) -> None:
        """Give a slab's memory back as soon as nobody has it locked."""
        self.offsets.punch(memory)
