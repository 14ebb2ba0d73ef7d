"""Blocks of the pool that are on peers, above host memory. Pure.

New blocks go to peers as long as there is room, or a block to evict that has a copy below. Blocks
that would go next are copied to host memory beforehand. When a peer wants memory back, its slabs
drain: blocks that no request needs leave immediately, after a copy to host memory if peers are
`backed`.

Replicas, which are copies of content that host memory has anyway such as parameters, are on peers
as well, up to each tenant's share. A request that needs one is told when its memory is wanted back.
"""

from __future__ import annotations

from collections.abc import Callable

from mirage.tiers.arena import Arena
from mirage.tiers.below import Below
from mirage.tiers.blocks import Action, Block, BlockState, Name, Tell
from mirage.tiers.contract import Lookup
from mirage.tiers.counts import PeersState
from mirage.tiers.peer_backing import AHEAD, PeerBacking, PeerPlan
from mirage.tiers.policies import EvictionPolicy
from mirage.tiers.space import stride_of


class Peered:
    """Blocks on peers. Before they are evicted they are copied to `host`; `act` takes the
    orders."""

    def __init__(
        self,
        plan: PeerPlan,
        policy: Callable[[], EvictionPolicy],
        start: int,
        host: Arena,
        below: Below,
        act: Callable[[Action], None],
    ) -> None:
        self.sizes, self.start, self._act = plan.devices, start, act
        self._backing = PeerBacking(plan, start, host, below, act)
        self.offsets = self._backing.offsets
        self.arena = Arena(self.offsets.span, policy, self._backing)
        self.offsets.watch(self._draining)

    def state(self) -> PeersState | None:
        """Return a snapshot; None if there are no peers."""
        if not self.offsets.span:
            return None
        peers = self.offsets.peers
        backed = self._backing.backed
        return PeersState(self.arena.state(), peers.state(), backed, peers.revocations)

    def owns(self, block: Block) -> bool:
        """True if the block's place is on a peer."""
        return block.offset >= self.start

    def find(self, name: Name) -> Block | None:
        """Return the block of a name; None if there is none, or its memory is wanted back."""
        block = self.arena.get(name)
        return None if block is None or self.arena.retiring(block) else block

    def find_replica(self, name: Name, tenant: str) -> Block | None:
        """Return a replica (a copy of parameters on a peer) that `tenant` may use; None if there is
        none, or it would exceed a tenant's share.

        A shared replica is charged to the tenant that used it first, and is wanted back if that
        tenant has too many.
        """
        block = self.find(name)
        if block is None:
            return None
        if block.idle:
            return block if self.may_keep(tenant, block.nbytes) else None
        return block if self._excess(block.tenant) <= 0 else None

    def recalled(self, name: Name) -> bool:
        """True if there is a replica (a copy of parameters) of that name on a peer, and its memory
        is wanted back by the peer, or because its tenant is above its share."""
        block = self.arena.get(name)
        if block is None or block.idle:
            return False
        return self.arena.retiring(block) or self._excess(block.tenant) > 0

    def hand(self, replica: Block, tenant: str) -> None:
        """Charge a replica (a copy of parameters) to `tenant`, which needs it, and recall replicas
        that exceed their tenants' shares."""
        self.arena.hand(replica, tenant)
        self.recall_excess()

    def place(self, name: Name, tenant: str, nbytes: int) -> Block | None:
        """Place a new block to be written, after evictions if necessary; None if there is no
        room."""
        if not self.offsets.span:
            return None
        return self.arena.place(name, tenant, nbytes, BlockState.WRITTEN)

    def place_replica(self, name: Name, tenant: str, nbytes: int) -> Block | None:
        """Place a new block for a replica (a copy of parameters) to be written to; None if there is
        no room, or beyond the tenant's share."""
        if not self.may_keep(tenant, nbytes):
            return None
        return self.arena.place(name, tenant, nbytes, BlockState.WRITTEN, replica=True)

    def recall_excess(self) -> None:
        """Recall the replicas (copies of parameters) that exceed their tenants' shares of peers'
        memory; call it after a change of shares."""
        for tenant in self.arena.ledger.tenants:
            over = self._excess(tenant)
            for block in self.arena.replicas(tenant) if over > 0 else ():
                if over <= 0:
                    break
                self._recall(block)
                over -= block.stride

    def may_keep(self, tenant: str, nbytes: int) -> bool:
        """True if one more replica (a copy of parameters), of `nbytes` bytes, is within a tenant's
        share of peers' memory."""
        return self._excess(tenant) + stride_of(nbytes) <= 0

    def _excess(self, tenant: str) -> int:
        """Return the bytes by which a tenant's replicas (copies of parameters) exceed its share of
        peers' memory; negative if they are below it."""
        return self.arena.ledger.account(tenant).replicas - self.arena.ledger.share(tenant)

    def _recall(self, block: Block) -> None:
        """Tell the requests that use a replica (a copy of parameters) to leave it."""
        for seeker in block.pins:
            self._act(Tell(seeker, block.name.key, Lookup.RECALLED))

    def clean_ahead(self) -> None:
        """Begin to copy to host memory the blocks on peers that are evicted next and have no copy
        below. Do nothing while less than half of the peers' budget is in use."""
        slabs = self.arena.space.slabs
        if not self.offsets.span or slabs.counted < self.arena.ledger.budget / 2:
            return
        ahead = min(AHEAD, len(self.arena) // 4)
        for block in self.arena.space.next_victims(ahead - self._backing.moving):
            if not block.offered and not self._backing.has_copy(block):
                self._backing.move(block)

    def moved(self, name: Name, *, whole: bool) -> None:
        """Note that a copy to host memory has ended, or did not begin; `whole` is True if it
        succeeded."""
        block = self.arena.get(name)
        if block is not None and block.sinking:
            self._backing.moved(block, whole=whole)
            self.arena.settle(block)

    def resize(self, device: str, budget: int) -> None:
        """Set the bytes that a peer lends. Raise `ValueError` for an unknown peer, and if its
        holder has ended or it has fewer bytes."""
        if device in self._backing.lost:
            raise ValueError(f"peer {device!r}: its holder has ended, start the server again")
        order = [slab.offset for slab in self.arena.space.to_retire()]
        self.offsets.resize(device, budget, order)
        self._shrink()

    def returned(self, offset: int) -> None:
        """Note that the process that lends a peer's memory has released that of a `ReturnOrder`,
        which begins at `offset`."""
        self.offsets.returned(offset)

    def lost(self, device: str) -> None:
        """Note that the process that lends the memory of the peer `device` has ended: blocks that
        requests need stay until they leave, others are gone."""
        self._backing.lost.add(device)
        self.offsets.lost(device)
        self._shrink()

    def failed(self, offset: int) -> None:
        """Note that the process that lends a peer's memory could not make that of a `LendOrder`,
        which was to begin at `offset`."""
        self.offsets.failed(offset)
        self._shrink()

    def _shrink(self) -> None:
        self.arena.ledger.resize(self.offsets.peers.budget)
        self.recall_excess()

    def _draining(self, offset: int) -> None:
        slab = self.arena.space.slabs.at(offset)
        for block in self.arena.space.blocks_in(slab):
            if block.stays:
                self._recall(block)
        self.arena.drain(slab)
