"""Peers as the memory of an arena, whose blocks are copied to host memory before they go. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mirage.tiers.arena import Arena
from mirage.tiers.below import Below
from mirage.tiers.blocks import Action, Block, BlockState, PeerCopy, Punch
from mirage.tiers.holes import ByteRange
from mirage.tiers.peers.offsets import LeasedOffsets

AHEAD = 64
"""Blocks that would go next and are copied to host memory at a time; a quarter of all at most."""


@dataclass(frozen=True)
class PeerPlan:
    """`devices`: bytes of each peer by its name; none at all without peers."""

    devices: dict[str, int] = field(default_factory=dict)
    backed: bool = True
    """True if memory that a peer wants back is copied to host memory first, not dropped."""
    granule: int = 0
    """Bytes that peers lend multiples of, if holders have their memory and make it when it is
    lent; 0: it is there already."""


class PeerBacking:
    """`Backing` of peers' memory from offset `start` on.

    `host` is where copies go, and what it has is no longer needed here; `act` takes what is to be
    done.
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
        """Blocks that are being copied to host memory."""

    def largest(self, budget: int) -> int:
        """Bytes that one device may lend at most."""
        return self.offsets.peers.largest

    def may_go(self, block: Block) -> bool:
        """True of an idle one that lies below as well."""
        return block.idle and (block.replica or self.has_copy(block))

    def rescue(self, block: Block) -> bool:
        """True if a block is copied before it goes. Once tried in vain, it is not."""
        if not self.backed or self.offsets.device(block.offset) in self.lost:
            return False
        return not block.offered and not self.has_copy(block) and self.move(block)

    def punch(self, memory: ByteRange) -> None:
        """A holder that makes memory when it is lent hears of whole leases instead."""
        if not self._made_when_lent:
            self._act(Punch(memory))

    def has_copy(self, block: Block) -> bool:
        """True if its content lies below as well, in host memory or on a disk."""
        copy = self._host.get(block.name)
        if copy is not None:
            return copy.state is BlockState.READY
        return self._below.has(block.name, block.nbytes)

    def move(self, block: Block) -> bool:
        """Begin to copy a block to host memory; False without room there."""
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
        """The block's copy has ended, or did not begin."""
        block.sinking, block.offered = False, not whole
        self.moving -= 1
