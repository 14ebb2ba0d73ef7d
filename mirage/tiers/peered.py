"""Blocks of the pool that lie on peers, above host memory. Pure.

New blocks go to peers as long as there is room or a block to evict that has a copy below. What
would go next is copied to host memory beforehand. When a peer wants memory back, its slabs drain:
blocks that nobody needs leave at once, after a copy to host memory if peers are `backed`.
Replicas of what host memory has anyway lie there as well, of each tenant up to its share. Who needs
one hears when its memory is wanted back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mirage.tiers.below import Below
from mirage.tiers.blocks import Action, Block, BlockState, Name, PeerCopy, Punch, Tell
from mirage.tiers.contract import Lookup
from mirage.tiers.counts import Counts, PeersState, picture
from mirage.tiers.held import HostArena
from mirage.tiers.holes import ByteRange
from mirage.tiers.ledger import TierLedger
from mirage.tiers.peers.offsets import LeasedOffsets
from mirage.tiers.policies import EvictionPolicy
from mirage.tiers.space import stride_of

AHEAD = 64
"""Blocks that would go next and are copied to host memory at a time; a quarter of all at most."""


@dataclass(frozen=True)
class PeerPlan:
    """`devices`: bytes of each peer by its name; none at all without peers."""

    devices: dict[str, int] = field(default_factory=dict)
    backed: bool = True
    """What a peer wants back is copied to host memory first; else it is dropped."""
    granule: int = 0
    """Bytes that peers lend multiples of, if holders have their memory and make it when it is
    lent; 0: it is there already."""


class Peered:
    """`host` is where copies go; `act` takes what is to be done.

    `ready` and `lost` hear what became of a copy in host memory, `evicted` of blocks that went.
    """

    def __init__(
        self,
        plan: PeerPlan,
        policy: Callable[[], EvictionPolicy],
        host: HostArena,
        below: Below,
        *,
        act: Callable[[Action], None],
        ready: Callable[[Block], None],
        lost: Callable[[Block], None],
        evicted: Callable[[Block], None],
    ) -> None:
        self.sizes = plan.devices
        self.start, self._backed = host.space.span, plan.backed
        self._host, self._below, self._act = host, below, act
        self._copy_ready, self._copy_lost = ready, lost
        self.offsets = LeasedOffsets(
            plan.devices,
            self.start,
            backed=plan.backed,
            granule=plan.granule or 1,
            act=act if plan.granule else None,
        )
        self._lost: set[str] = set()
        """Devices whose holder has ended."""
        self.ledger = TierLedger(self.offsets.span)
        self.held = HostArena(
            self.ledger,
            policy,
            evicted,
            lambda memory: None if plan.granule else act(Punch(memory)),
            self.offsets,
            self._rescue,
        )
        self.held.space.may_go = self._may_go
        self.held.space.largest = lambda: self.offsets.peers.largest
        self.held.space.most_looks = 2 * AHEAD
        self.held.space.granule = plan.granule or 1
        self.offsets.watch(self._draining)
        self._moving = 0
        self._counts: dict[str, Counts] = {}

    def count(self, tenant: str) -> Counts:
        """What peers did for a tenant."""
        return self._counts.setdefault(tenant, Counts())

    def state(self) -> PeersState | None:
        """A picture that does not change any more; None without peers."""
        if not self.offsets.span:
            return None
        held = picture(self.ledger, self.held.space, len(self.held), self._counts)
        peers = self.offsets.peers
        return PeersState(held, peers.state(), self._backed, peers.revocations)

    def owns(self, block: Block) -> bool:
        """Whether its place is a peer's."""
        return block.offset >= self.start

    def find(self, name: Name) -> Block | None:
        """A block that may be sought: none whose memory is wanted back."""
        block = self.held.get(name)
        return None if block is None or self.held.retiring(block) else block

    def find_replica(self, name: Name, tenant: str) -> Block | None:
        """The same of replicas: none that would be needed beyond somebody's share.

        One that is needed already counts for its first tenant, and is wanted back if that one has
        too many.
        """
        block = self.find(name)
        if block is None:
            return None
        if block.idle:
            return block if self.may_keep(tenant, block.nbytes) else None
        return block if self._excess(block.tenant) <= 0 else None

    def recalled(self, name: Name) -> bool:
        """Whether a replica is there, and is wanted back from who needs it."""
        block = self.held.get(name)
        if block is None or block.idle:
            return False
        return self.held.retiring(block) or self._excess(block.tenant) > 0

    def hand(self, replica: Block, tenant: str) -> None:
        """It counts for `tenant` from now on, which needs it and may have too many then."""
        self.held.hand(replica, tenant)
        self.recall_excess()

    def place(self, name: Name, tenant: str, nbytes: int) -> Block | None:
        """A new block that is to be written; None if there is no room."""
        if not self.offsets.span:
            return None
        return self.held.place(name, tenant, nbytes, BlockState.WRITTEN)

    def place_replica(self, name: Name, tenant: str, nbytes: int) -> Block | None:
        """The same, of what host memory has anyway; None beyond the tenant's share."""
        if not self.may_keep(tenant, nbytes):
            return None
        return self.held.place(name, tenant, nbytes, BlockState.WRITTEN, replica=True)

    def recall_excess(self) -> None:
        """Shares have changed: replicas beyond them are wanted back."""
        for tenant in self.ledger.tenants:
            over = self._excess(tenant)
            for block in self.held.replicas(tenant) if over > 0 else ():
                if over <= 0:
                    break
                self._recall(block)
                over -= block.stride

    def may_keep(self, tenant: str, nbytes: int) -> bool:
        """Whether one replica more is within a tenant's share."""
        return self._excess(tenant) + stride_of(nbytes) <= 0

    def _excess(self, tenant: str) -> int:
        """Bytes by which its replicas are beyond its share; negative below it."""
        return self.ledger.account(tenant).replicas - self.ledger.share(tenant)

    def _recall(self, block: Block) -> None:
        """Tell those that have a replica to leave."""
        for seeker in block.pins:
            self._act(Tell(seeker, block.name.key, Lookup.RECALLED))

    def clean_ahead(self) -> None:
        """Of what would go next, copy to host memory what has no copy below."""
        slabs = self.held.space.slabs
        if not self.offsets.span or slabs.counted < self.ledger.budget / 2:
            return
        ahead = min(AHEAD, len(self.held) // 4)
        for block in self.held.space.next_victims(ahead - self._moving):
            if not block.offered and not self._has_copy(block):
                self._move(block)

    def moved(self, name: Name, *, whole: bool) -> None:
        """A copy to host memory has ended, or did not begin."""
        copy = self._host.get(name)
        if copy is not None and copy.state is BlockState.RISING:
            (self._copy_ready if whole else self._copy_lost)(copy)
        block = self.held.get(name)
        if block is not None and block.sinking:
            block.sinking, block.offered = False, not whole
            self._moving -= 1
            self.held.settle(block)

    def resize(self, device: str, budget: int) -> None:
        """What a peer lends. Raises `ValueError`."""
        if device in self._lost:
            raise ValueError(f"peer {device!r}: its holder has ended, start the server again")
        order = [slab.offset for slab in self.held.space.to_retire()]
        self.offsets.resize(device, budget, order)
        self._shrink()

    def returned(self, offset: int) -> None:
        """A holder has released the memory of a `ReturnOrder`."""
        self.offsets.returned(offset)

    def lost(self, device: str) -> None:
        """A holder has ended: what requests need stays until they leave, all else is gone."""
        self._lost.add(device)
        self.offsets.lost(device)
        self._shrink()

    def failed(self, offset: int) -> None:
        """A holder could not make the memory of a `LendOrder`."""
        self.offsets.failed(offset)
        self._shrink()

    def _shrink(self) -> None:
        self.ledger.resize(self.offsets.peers.budget)
        self.recall_excess()

    def _draining(self, offset: int) -> None:
        slab = self.held.space.slabs.at(offset)
        for block in self.held.space.blocks_in(slab):
            if block.stays:
                self._recall(block)
        self.held.space.drain(slab)

    def _may_go(self, block: Block) -> bool:
        return block.idle and (block.replica or self._has_copy(block))

    def _rescue(self, block: Block) -> bool:
        """Whether it is copied before it goes. Once tried in vain, it is not."""
        if not self._backed or self.offsets.device(block.offset) in self._lost:
            return False
        return not block.offered and not self._has_copy(block) and self._move(block)

    def _has_copy(self, block: Block) -> bool:
        copy = self._host.get(block.name)
        if copy is not None:
            return copy.state is BlockState.READY
        return self._below.has(block.name, block.nbytes)

    def _move(self, block: Block) -> bool:
        if self._host.get(block.name) is not None:
            return False
        copy = self._host.place(block.name, block.tenant, block.nbytes, BlockState.RISING)
        if copy is None:
            return False
        block.sinking = True
        self._moving += 1
        source, target = ByteRange(block.offset, block.nbytes), ByteRange(copy.offset, block.nbytes)
        self._act(PeerCopy(block.name, source, target))
        return True
