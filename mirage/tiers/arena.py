"""Blocks of one medium by their names: every change of a block, and of the accounts. Pure.

An arena has a ledger, the victims of its tenants, and places in the memory of its `Backing`. It
decides which blocks are evicted, and evicts them; the other parts only propose victims.
"""

from __future__ import annotations

from collections.abc import Callable

from mirage.tiers.backing import Backing
from mirage.tiers.blocks import Block, BlockState, Name, Seeker
from mirage.tiers.counts import Counts, PeersState, PoolState, picture
from mirage.tiers.ledger import Due, PriorityClass, TierLedger
from mirage.tiers.policies import EvictionPolicy
from mirage.tiers.slabs import BlockSlab
from mirage.tiers.space import BlockSpace, stride_of
from mirage.tiers.victims import Victims


class Arena:
    """Blocks in up to `budget` bytes of a backing's memory; each tenant's are under a `policy` of
    its own."""

    def __init__(self, budget: int, policy: Callable[[], EvictionPolicy], backing: Backing) -> None:
        self.ledger, self._backing = TierLedger(budget), backing
        self._victims = Victims(self.ledger, policy)
        self.space = BlockSpace(self.ledger, self._victims, backing)
        self._blocks: dict[Name, Block] = {}
        self._counts: dict[str, Counts] = {}
        self._removed: set[str] = set()
        """Removed tenants that still have blocks which are not idle."""

    def __len__(self) -> int:
        return len(self._blocks)

    def count(self, tenant: str) -> Counts:
        """Return the tenant's counts on this medium; callers add to the returned object."""
        return self._counts.setdefault(tenant, Counts())

    def state(self, peers: PeersState | None = None) -> PoolState:
        """Return a snapshot of the arena; `peers` is the state of the peers above it, if there are
        any."""
        return picture(self.ledger, self.space, len(self), self._counts, peers)

    def get(self, name: Name) -> Block | None:
        """Return the block of that name, in any state; None if there is none, or its writer is
        lost."""
        return self._blocks.get(name)

    def place(
        self, name: Name, tenant: str, nbytes: int, state: BlockState, *, replica: bool = False
    ) -> Block | None:
        """Place a new block that is not READY, after evictions if necessary; None if there is no
        room. A `replica` (a copy of parameters) is not offered to the tier below: engines have its
        content in host memory."""
        stride = stride_of(nbytes)
        offset = self._room(tenant, stride)
        if offset is None:
            return None
        block = Block(name, tenant, offset, stride, nbytes, state, offered=replica, replica=replica)
        self._blocks[name] = block
        self.space.enter(block)
        own = self.ledger.account(tenant)
        own.held += stride
        own.reserved += stride
        own.replicas += stride * replica
        return block

    def ready(self, block: Block) -> None:
        """Make a block READY: it holds the content that its name says."""
        block.state, block.writer = BlockState.READY, None
        own = self.ledger.account(block.tenant)
        own.reserved -= block.stride
        own.pinned += block.stride if block.pins else 0
        if not block.stays:
            own.replicas -= block.stride * block.replica
            self._victims.add(block)

    def pin(self, block: Block, seeker: Seeker) -> None:
        """Note that a request (`seeker`) needs the block: it is neither changed nor evicted before
        `unpin`."""
        if not block.pins and block.state is BlockState.READY:
            own = self.ledger.account(block.tenant)
            own.pinned += block.stride
            if block.replica:
                own.replicas += block.stride
                self._victims.drop(block)
        block.pins.add(seeker)

    def unpin(self, block: Block, seeker: Seeker) -> None:
        """Note that a request (`seeker`) needs the block no longer. If no other one does, `settle`
        may evict it."""
        block.pins.discard(seeker)
        if not block.pins and block.state is BlockState.READY:
            own = self.ledger.account(block.tenant)
            own.pinned -= block.stride
            if block.replica:
                own.replicas -= block.stride
                self._victims.add(block)
            self.settle(block)

    def use(self, block: Block, tenant: str) -> None:
        """Note that `tenant` uses a READY block, which is charged to it from now on.

        A replica (a copy of parameters) that a request needs already stays charged as it is. So
        another tenant that shares it is charged nothing, and cannot exceed its share by that.
        """
        if block.stays:
            return
        if block.tenant != tenant:
            self._charge(block, tenant)
        self._victims.use(block, tenant)

    def hand(self, replica: Block, tenant: str) -> None:
        """Charge a replica (a copy of parameters) to `tenant`, which needs it; the tenant to which
        it was charged no longer does."""
        self._charge(replica, tenant)
        self.ledger.account(replica.tenant).replicas -= replica.stride
        self.ledger.account(tenant).replicas += replica.stride
        replica.tenant = tenant

    def replicas(self, tenant: str) -> list[Block]:
        """Return the blocks charged to a tenant that are replicas (copies of parameters) and that
        requests need, old ones first."""
        return [b for b in self._blocks.values() if b.stays and b.tenant == tenant]

    def forget(self, block: Block) -> None:
        """Remove the block from the index; its place stays taken. A second call does nothing."""
        if self._blocks.get(block.name) is block:
            del self._blocks[block.name]

    def give(self, block: Block) -> None:
        """Free the place of a forgotten block that was never READY."""
        own = self.ledger.account(block.tenant)
        own.held -= block.stride
        own.reserved -= block.stride
        own.replicas -= block.stride * block.replica
        self.space.give(block)
        self._close(block.tenant)

    def retiring(self, block: Block) -> bool:
        """True if memory of the block's slab is to be given back."""
        return self.space.slabs.of(block.offset).retiring

    def settle(self, block: Block) -> None:
        """Evict the block if it has become idle, and its tenant was removed or its memory is wanted
        back.

        In the second case its content may be copied elsewhere first; it then stays until the copy
        has ended.
        """
        if block.idle and block.doomed:
            self._evict(block)
        elif block.idle and self.retiring(block):
            self._go(block)

    # -- tenants ------------------------------------------------------------------------

    def enrol(self, tenant: str, due: Due) -> None:
        """Add a tenant, with priority class IDLE."""
        self._removed.discard(tenant)
        self.ledger.set(tenant, due=due, standing=PriorityClass.IDLE)

    def wipe(self, tenant: str) -> None:
        """Remove a tenant: its idle blocks are evicted immediately, others when they become idle,
        unless another tenant uses them before."""
        self._removed.add(tenant)
        self.ledger.set(tenant, standing=PriorityClass.EVICTABLE)
        for block in [b for b in self._blocks.values() if b.tenant == tenant]:
            block.doomed = True
            self.settle(block)
        self._close(tenant)

    def _close(self, tenant: str) -> None:
        if tenant in self._removed and not self.ledger.account(tenant).held:
            self._removed.discard(tenant)
            self.ledger.close(tenant)
            self._victims.close(tenant)
            self._counts.pop(tenant, None)

    def _charge(self, block: Block, tenant: str) -> None:
        block.doomed = False
        before, after = self.ledger.account(block.tenant), self.ledger.account(tenant)
        before.held -= block.stride
        after.held += block.stride
        if block.pins:
            before.pinned -= block.stride
            after.pinned += block.stride

    # -- who goes -----------------------------------------------------------------------

    def resize(self, budget: int) -> None:
        """Set the budget in bytes. Slabs are emptied until the rest is within it: idle blocks leave
        immediately, others when they become idle."""
        self.ledger.resize(budget)
        self.space.close_empty(budget)
        for slab in self.space.to_retire():
            if self.space.slabs.counted <= budget:
                break
            self._retire(slab)

    def drain(self, slab: BlockSlab) -> None:
        """Empty a slab whose memory is wanted back: idle blocks leave immediately, or after a copy
        elsewhere (`Backing.rescue`), others when they become idle."""
        if not slab.retiring:
            self._retire(slab)

    def _retire(self, slab: BlockSlab) -> None:
        for block in self.space.blocks_in(slab):
            if block.idle:
                self._go(block)
        self.space.retire(slab)

    def _room(self, taker: str, stride: int) -> int | None:
        """Return a place for a block of `taker`, after evictions if necessary; None if there is no
        room."""
        if stride > self._backing.largest(self.ledger.budget):
            return None
        while (offset := self.space.take(stride)) is None:
            if not (going := self.space.who_goes(taker, stride)):
                return None
            for block in going:
                self._evict(block)
        return offset

    def _go(self, block: Block) -> None:
        if not self._backing.rescue(block):
            self._evict(block)

    def _evict(self, block: Block) -> None:
        self.forget(block)
        self._victims.evict(block)
        self.ledger.account(block.tenant).held -= block.stride
        self.count(block.tenant).evictions += not block.replica
        self.space.give(block)
        self._close(block.tenant)
