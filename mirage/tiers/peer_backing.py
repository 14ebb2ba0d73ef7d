"""Peers' memory as the backing of an arena, whose blocks are copied to host memory before they go.
Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mirage.tiers.arena import Arena
from mirage.tiers.below import Below
from mirage.tiers.blocks import Action, Block, BlockState, PeerCopy, Punch
from mirage.tiers.holes import ByteRange
from mirage.tiers.peers.offsets import LeasedOffsets

AHEAD = 64
"""Largest number of blocks that are copied to host memory ahead of eviction at a time; at most a
quarter of the blocks on peers."""


@dataclass(frozen=True)
class PeerPlan:
    """Peers of a pool. `devices` has the bytes of each peer by its name; empty if there are no
    peers."""

    devices: dict[str, int] = field(default_factory=dict)
    backed: bool = True
    """True if blocks whose memory a peer wants back are copied to host memory first; False if they
    are dropped."""
    granule: int = 0
    """Unit in bytes of the memory that peers lend, if holders make it when it is lent; 0 if it
    exists from the start."""


class PeerBacking:
    """`Backing` of peers' memory from offset `start` on.

    Blocks are copied to the arena `host`, and a block that is there need not be copied; `act` takes
    the orders.
    """

    waiting = 0
    most_looks: int | None = 2 * AHEAD

    def __init__(
        self, plan: PeerPlan, start: int, host: Arena, below: Below, act: Callable[[Action], None]
    ) -> None:
        self.granule, self.backed = plan.granule or 1, plan.backed
        self._host, self._below, self._act = host, below, act
        self._made_when_lent = bool(plan.granule)
        self.offsets = LeasedOffsets(
            plan.devices,
            start,
            backed=plan.backed,
            granule=self.granule,
            act=act if self._made_when_lent else None,
        )
        self.lost: set[str] = set()
        """Devices whose holder has ended."""
        self.moving = 0
        """Number of blocks that are being copied to host memory."""

    def largest(self, budget: int) -> int:
        """Return the bytes of the peer that may lend most: a larger block finds no room, whatever
        the `budget` of all peers is."""
        return self.offsets.peers.largest

    def may_go(self, block: Block) -> bool:
        """True for an idle block that is a copy of parameters, or is in host memory or on a disk as
        well."""
        return block.idle and (block.replica or self.has_copy(block))

    def rescue(self, block: Block) -> bool:
        """Begin to copy a block to host memory before it is evicted; False if it has a copy, or if
        that is not possible or has failed before."""
        if not self.backed or self.offsets.device(block.offset) in self.lost:
            return False
        return not block.offered and not self.has_copy(block) and self.move(block)

    def punch(self, memory: ByteRange) -> None:
        """Give memory back; a holder that makes memory when it is lent is told of whole leases
        instead."""
        if not self._made_when_lent:
            self._act(Punch(memory))

    def has_copy(self, block: Block) -> bool:
        """True if the block's content is also in host memory or on a disk."""
        copy = self._host.get(block.name)
        if copy is not None:
            return copy.state is BlockState.READY
        return self._below.has(block.name, block.nbytes)

    def move(self, block: Block) -> bool:
        """Begin to copy a block to host memory; False if there is no room, or that block is already
        there."""
        if self._host.get(block.name) is not None:
            return False
        copy = self._host.place(block.name, block.tenant, block.nbytes, BlockState.RISING)
        if copy is None:
            return False
        block.sinking = True
        self.moving += 1
        source, target = ByteRange(block.offset, block.nbytes), ByteRange(copy.offset, block.nbytes)
        self._act(PeerCopy(block.name, source, target))
        return True

    def moved(self, block: Block, *, whole: bool) -> None:
        """Note that the copy of a block to host memory has ended, or did not begin. `whole` is True
        if the copy succeeded; otherwise the block is not copied again."""
        block.sinking, block.offered = False, not whole
        self.moving -= 1
