"""State of the whole pool: its members, their blocks and places. Pure: no I/O, no clock.

Events go in, `Action`s come out. Whatever engines do, the promises of `mirage.tiers.contract` hold
as long as actions are carried out in their order and before the next event of the same member.

Offsets below `span` are those of host memory, the others those of peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mirage.tiers.arena import Arena
from mirage.tiers.backing import HostBacking
from mirage.tiers.below import Below, Nothing
from mirage.tiers.blocks import Action, Block, BlockState, Name, Rise, Seeker, Tell
from mirage.tiers.cleaning import Cleaning
from mirage.tiers.contract import Key, Lookup, Member
from mirage.tiers.counts import Counts, PoolState
from mirage.tiers.holes import ByteRange
from mirage.tiers.ledger import Due, PriorityClass, TierLedger
from mirage.tiers.locks import Locks
from mirage.tiers.peer_backing import PeerPlan
from mirage.tiers.peered import Peered
from mirage.tiers.policies import LRU, EvictionPolicy
from mirage.tiers.space import SPARE_OFFSETS, span_of, stride_of

NO_PEERS = PeerPlan()


class MemberRefused(ValueError):
    """Error: an engine cannot join the pool; the message is one line."""


class Core:
    """Decisions of the host pool. `budget` in bytes is also the largest that `resize` can ever
    set."""

    def __init__(
        self,
        budget: int,
        policy: Callable[[], EvictionPolicy] = LRU,
        below: Below | None = None,
        peers: PeerPlan = NO_PEERS,
    ) -> None:
        self.below = below or Nothing()
        self._actions: list[Action] = []
        self.span = span_of(budget)
        """Number of offsets of host memory, in bytes: more than the budget, since the region is
        sparse."""
        self._locks = Locks(self.span, self._act)
        self._host = Arena(budget, policy, HostBacking(self._locks))
        self._cleaning = Cleaning(self._host, self.below, self._act)
        self._peered = Peered(peers, policy, self.span, self._host, self.below, self._act)
        self._arenas = self._peered.arena, self._host
        """Arenas of the media on which a block may be, fastest first."""
        self._members: dict[int, Member] = {}
        self._joined = 0
        self._kinds: dict[bytes, tuple[int, bool]] = {}
        """Bytes of a block, and True if blocks are replicas (copies of parameters), by the
        fingerprint of the engines that have them."""
        self._sought: dict[Seeker, dict[Key, Block]] = {}
        self._written: dict[int, dict[Block, None]] = {}
        """Blocks that each member (engine) has reserved, by its number; also those of a member that
        is `gone` and has not `ended`."""
        self._rising: set[Name] = set()
        """Names of blocks that are being copied from the tier below to host memory."""

    @property
    def ledger(self) -> TierLedger:
        """Accounts of all tenants on host memory, in bytes."""
        return self._host.ledger

    @property
    def peer_starts(self) -> dict[str, int]:
        """Offset in bytes at which each peer's memory begins, by the name of its device."""
        return self._peered.offsets.starts

    @property
    def peer_sizes(self) -> dict[str, int]:
        """Largest number of bytes that each peer lends."""
        return self._peered.sizes

    def peer_of(self, offset: int) -> str:
        """Return the device that an offset belongs to. Raise `ValueError` if there is none."""
        return self._peered.offsets.device(offset)

    @property
    def peer_span(self) -> int:
        """Number of offsets of peers' memory in bytes; they follow those of host memory."""
        return self._peered.offsets.span

    def actions(self) -> list[Action]:
        """Return the orders since the last call, in their order."""
        actions, self._actions = self._actions, []
        return actions

    # -- members ------------------------------------------------------------------------

    def enrol(self, tenant: str, due: Due) -> None:
        """Add a tenant that will have members; it is idle."""
        for arena in self._arenas:
            arena.enrol(tenant, due)

    def declares(self, tenant: str, due: Due) -> None:
        """Set the entitlement of a tenant."""
        for arena in self._arenas:
            arena.ledger.set(tenant, due=due)
        self._peered.recall_excess()

    def wipe(self, tenant: str) -> None:
        """Remove a tenant, for which `dead` has been called, and erase all its blocks."""
        for arena in self._arenas:
            arena.wipe(tenant)
        self.below.wipe(tenant)

    def join(self, member: Member) -> int:
        """Add an engine and return its member number. Raise `MemberRefused` if its blocks have no
        bytes, or differ from those of engines with the same fingerprint: in size, or because
        only one of the two has replicas (copies of parameters)."""
        if member.block_bytes <= 0:
            raise MemberRefused(f"block_bytes is {member.block_bytes}: it must be positive")
        kind = member.block_bytes, member.replicas
        known = self._kinds.setdefault(member.fingerprint, kind)
        if known != kind:
            raise MemberRefused(
                f"{_words(*kind)} under a fingerprint of {_words(*known)}: "
                "make the fingerprint of the layout as well"
            )
        self._joined += 1
        self._members[self._joined] = member
        self._written[self._joined] = {}
        for arena in self._arenas:
            arena.ledger.set(member.tenant, due=member.due)
        self._host.count(member.tenant)
        self._peered.recall_excess()
        return self._joined

    def gone(self, number: int) -> None:
        """Note that a member (an engine) cannot be reached. Its process may still read and write
        its places.

        So its pins stay, and places that it had reserved are not given to others, until it has
        `ended`.
        """
        for block in self._written.get(number, ()):
            self._forget(block)

    def ended(self, number: int) -> None:
        """Note that the member's process reads and writes no more. A second call does nothing."""
        if self._members.pop(number, None) is None:
            return
        for seeker in [s for s in self._sought if s.member == number]:
            self._leave(seeker)
        for block in self._written.pop(number):
            self._drop(block)

    def dead(self, tenant: str) -> None:
        """Note that all processes of a tenant's engine have surely ended. A second call does
        nothing."""
        for number in [n for n, member in self._members.items() if member.tenant == tenant]:
            self.ended(number)

    # -- what engines ask ---------------------------------------------------------------

    def seek(
        self, number: int, request: str | int, keys: Iterable[Key], *, rise: bool = True
    ) -> None:
        """Pin blocks that the pool has, and with `rise` begin to copy those in the tier below to
        host memory; order a `Tell` for each key."""
        for key in keys:
            self._seek(number, Seeker(number, request), key, rise=rise)

    def leave(self, number: int, request: str | int, loaded: int = 0, from_peers: int = 0) -> None:
        """Note that a request needs nothing any more; its engine loaded `loaded` blocks for it,
        `from_peers` of them from peers."""
        member = self._members[number]
        tenant, nbytes = member.tenant, member.block_bytes
        if member.replicas:
            loaded = from_peers = 0
        self._count(tenant).loaded_bytes += (loaded - from_peers) * nbytes
        if from_peers:
            self._peered.arena.count(tenant).loaded_bytes += from_peers * nbytes
        self._leave(Seeker(number, request))

    def has(self, name: Name) -> bool:
        """Return True if a block of this name is in the pool, or is being written to it."""
        return any(arena.get(name) for arena in self._arenas)

    def reserve(self, number: int, keys: Iterable[Key]) -> dict[Key, int]:
        """Return the offset of a new place for each key; keys that the pool has, or for which it
        has no room, are left out."""
        member, given = self._members[number], dict[Key, int]()
        for key in keys:
            name = Name(member.fingerprint, key)
            if self.has(name):
                continue
            block = self._place(name, member)
            if block is None:
                self._count(member.tenant).refused += not member.replicas
                continue
            block.writer = number
            self._written[number][block] = None
            given[key] = block.offset
        return given

    def commit(self, number: int, keys: Iterable[Key]) -> None:
        """Make blocks READY that a member reserved: they hold the content that their names say."""
        for block in self._of_writer(number, keys):
            del self._written[number][block]
            self._count(block.tenant, block).stored_bytes += block.nbytes * (not block.replica)
            self._ready(block)
        self._peered.clean_ahead()
        self._cleaning.ahead(self.ledger.budget)

    def abandon(self, number: int, keys: Iterable[Key]) -> None:
        """Drop blocks that a member reserved: they hold nothing, and the member no longer writes to
        their places."""
        for block in self._of_writer(number, keys):
            del self._written[number][block]
            self._drop(block)

    def lock(self, offset: int) -> ByteRange | None:
        """Return the byte range of the slab of host memory that has the block at `offset`, for an
        engine to page-lock; None if it may not be page-locked.

        Page-locked slabs count as in use until `unlocked` is called for them.
        """
        try:
            return self._locks.lock(self._host.space.slabs.of(offset))
        except KeyError:
            return None

    def unlocked(self, start: int) -> None:
        """Note that no engine has the slab of host memory that begins at byte `start` page-locked
        any more. What waited for this is done: memory of the slab is given back to the operating
        system, and the bytes of a closed slab become free. A second call does nothing."""
        self._locks.let_go(start)

    # -- the tier below -----------------------------------------------------------------

    def risen(self, name: Name, *, whole: bool) -> None:
        """Note that a copy from the tier below to host memory has ended, or did not begin. `whole`
        is True if it succeeded: the block is then READY, otherwise it is dropped."""
        self._rising.discard(name)
        block = self._host.get(name)
        if block is None or block.state is not BlockState.RISING:
            return
        if whole:
            block.offered = True
            for seeker in block.pins:
                self._count(self._members[seeker.member].tenant).risen += 1
            self._ready(block)
        else:
            self._drop(block)

    def moved(self, name: Name, *, whole: bool) -> None:
        """Note that a copy from a peer to host memory has ended, or did not begin. `whole` is True
        if it succeeded: the copy is then READY, otherwise it is dropped."""
        copy = self._host.get(name)
        if copy is not None and copy.state is BlockState.RISING:
            self._ready(copy) if whole else self._drop(copy)
        self._peered.moved(name, whole=whole)

    def sunk(self, name: Name, *, whole: bool) -> None:
        """Note that a copy from host memory to the tier below has ended, or did not begin. The
        block in host memory may be evicted now, also if the copy failed (`whole` is False)."""
        self._cleaning.sunk(name)

    # -- before the end -----------------------------------------------------------------

    @property
    def sinking(self) -> int:
        """Number of blocks that are being copied from host memory to the tier below."""
        return self._cleaning.sinking

    def unsaved(self, most_bytes: int) -> list[Name]:
        """Return the names of idle blocks in host memory that the tier below lacks, as far as
        `most_bytes` of its disk suffice; those first that would be evicted last."""
        return self._cleaning.unsaved(most_bytes)

    def save(self, names: Iterable[Name]) -> None:
        """Begin to copy these blocks from host memory to the tier below."""
        self._cleaning.save(names)

    # -- what the server says -----------------------------------------------------------

    def resize(self, budget: int) -> None:
        """Set the budget while the pool runs. Raise `ValueError` if it is larger than the first
        one."""
        if span_of(budget) > self.span:
            raise ValueError(f"{budget} bytes: the pool was made for {self.span // SPARE_OFFSETS}")
        self._host.resize(budget)

    def resize_peer(self, device: str, budget: int) -> None:
        """Set the bytes that a peer lends from now on; memory beyond them is revoked. Raise
        `ValueError` for an unknown peer, one whose holder has ended, and bytes that it lacks."""
        self._peered.resize(device, budget)

    def returned(self, offset: int) -> None:
        """Note that the memory of a `ReturnOrder` has been released."""
        self._peered.returned(offset)

    def lent_in_vain(self, offset: int) -> None:
        """Note that a device has no memory for a `LendOrder`."""
        self._peered.failed(offset)

    def lost(self, device: str) -> None:
        """Note that the holder of a peer's memory has ended. The caller then calls `returned` for
        each `ReturnOrder` that it has not carried out."""
        self._peered.lost(device)

    def stand(self, tenant: str, standing: PriorityClass) -> None:
        """Set the priority class of a tenant."""
        for arena in self._arenas:
            if arena.ledger.account(tenant).standing is not standing:
                arena.ledger.set(tenant, standing=standing)
        self._peered.recall_excess()

    def state(self) -> PoolState:
        """Return a snapshot of the pool."""
        return self._host.state(self._peered.state())

    # -- one block ----------------------------------------------------------------------

    def _seek(self, number: int, seeker: Seeker, key: Key, *, rise: bool) -> None:
        member = self._members[number]
        name = Name(member.fingerprint, key)
        block = self._sought.get(seeker, {}).get(key) or self._find(name, member)
        if block is None and self._lies_below(name, member):
            block = self._raise(name, member) if rise else None
            if block is None:
                self._tell(seeker, key, Lookup.BELOW)
                return
        if block is None and member.replicas and self._peered.recalled(name):
            self._tell(seeker, key, Lookup.BELOW)
            return
        if block is None:
            self._count(member.tenant).misses += not member.replicas
            self._tell(seeker, key, Lookup.ABSENT)
            return
        mine = self._sought.setdefault(seeker, {})
        again = key in mine
        mine[key] = block
        if block.state is not BlockState.READY:
            self._home(block).pin(block, seeker)
            self._tell(seeker, key, Lookup.RISING if name in self._rising else Lookup.COMING)
            return
        if not again:
            self._home(block).use(block, member.tenant)
            self._count(member.tenant, block).hits += not block.replica
        self._home(block).pin(block, seeker)
        self._tell(seeker, key, Lookup.READY, block.offset)

    def _lies_below(self, name: Name, member: Member) -> bool:
        """True if the block is in the tier below and can be copied to host memory at some time;
        False if the pool has no room for it at all."""
        fits = stride_of(member.block_bytes) <= self.ledger.budget
        return fits and self.below.has(name, member.block_bytes)

    def _raise(self, name: Name, member: Member) -> Block | None:
        """Begin to copy a block from the tier below to host memory and return it; None if there is
        no room."""
        block = self._host.place(name, member.tenant, member.block_bytes, BlockState.RISING)
        if block is not None:
            self._rising.add(name)
            self._actions.append(Rise(name, ByteRange(block.offset, block.nbytes)))
        return block

    def _ready(self, block: Block) -> None:
        """Make a block READY, and tell the requests that wait for it."""
        home = self._home(block)
        home.ready(block)
        for seeker in block.pins:
            self._count(self._members[seeker.member].tenant, block).hits += not block.replica
            self._tell(seeker, block.name.key, Lookup.READY, block.offset)
            if block.replica and home.retiring(block):
                self._tell(seeker, block.name.key, Lookup.RECALLED)
        if block.stays:
            self._hand(block)
        home.settle(block)

    def _leave(self, seeker: Seeker) -> None:
        for block in self._sought.pop(seeker, {}).values():
            self._home(block).unpin(block, seeker)
            if block.stays:
                self._hand(block)

    def _hand(self, replica: Block) -> None:
        """Charge a replica (a copy of parameters on a peer) to one of the tenants that need it, if
        the tenant that it is charged to does not."""
        members = [self._members.get(seeker.member) for seeker in replica.pins]
        tenants = {member.tenant for member in members if member is not None}
        if tenants and replica.tenant not in tenants and replica.state is BlockState.READY:
            self._peered.hand(replica, min(tenants))

    def _forget(self, block: Block) -> None:
        """Remove a block from the index. Requests that wait for it are told that it is absent."""
        self._home(block).forget(block)
        for seeker in block.pins:
            self._sought[seeker].pop(block.name.key, None)
            self._count(self._members[seeker.member].tenant).misses += not block.replica
            self._tell(seeker, block.name.key, Lookup.ABSENT)
        block.pins.clear()

    def _drop(self, block: Block) -> None:
        """Drop a block that was never READY; no copy may still write to it."""
        self._forget(block)
        self._home(block).give(block)

    def _place(self, name: Name, member: Member) -> Block | None:
        """Return a new block to write to: on a peer if there is room, else, unless it is a replica
        (a copy of parameters), in host memory; None if neither has room."""
        tenant, nbytes = member.tenant, member.block_bytes
        if member.replicas:
            return self._peered.place_replica(name, tenant, nbytes)
        block = self._peered.place(name, tenant, nbytes)
        return block or self._host.place(name, tenant, nbytes, BlockState.WRITTEN)

    def _act(self, action: Action) -> None:
        self._actions.append(action)

    # -- small things -------------------------------------------------------------------

    def _of_writer(self, number: int, keys: Iterable[Key]) -> list[Block]:
        fingerprint = self._members[number].fingerprint
        names = [Name(fingerprint, key) for key in keys]
        found = (arena.get(name) for name in names for arena in self._arenas)
        return [block for block in dict.fromkeys(found) if block and block.writer == number]

    def _find(self, name: Name, member: Member) -> Block | None:
        """Return the block of a name in the medium that is fastest to read; None if there is
        none."""
        if member.replicas:
            return self._peered.find_replica(name, member.tenant)
        return self._peered.find(name) or self._host.get(name)

    def _home(self, block: Block) -> Arena:
        return self._peered.arena if self._peered.owns(block) else self._host

    def _count(self, tenant: str, block: Block | None = None) -> Counts:
        """Return the tenant's counts of the medium that `block` is in, or of host memory if it is
        None."""
        return (self._host if block is None else self._home(block)).count(tenant)

    def _tell(self, seeker: Seeker, key: Key, found: Lookup, offset: int = 0) -> None:
        self._actions.append(Tell(seeker, key, found, offset))


def _words(nbytes: int, replicas: bool) -> str:
    return f"{'replicas' if replicas else 'blocks'} of {nbytes} bytes"
