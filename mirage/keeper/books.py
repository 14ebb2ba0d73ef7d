"""Record of masters: which exist, which engines use each, and which is dropped. Pure.

A member is an engine that asks for one master; it has a number. Methods for events return orders,
which the keeper's process carries out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple


class GiveMaster(NamedTuple):
    """Order: hand a complete master to the member."""

    member: int
    identity: str


class LetFill(NamedTuple):
    """Order: let the member fill a new master."""

    member: int
    identity: str


class TurnAway(NamedTuple):
    """Order: the member gets no master."""

    member: int
    why: str


class DropMaster(NamedTuple):
    """Order: free the memory of a master that no engine uses."""

    identity: str


KeeperDeed = GiveMaster | LetFill | TurnAway | DropMaster


@dataclass(slots=True)
class MasterBook:
    """One master. `filler` is the member that fills it, None once it is complete.

    Members in `waiting` want the master when it is complete.
    """

    filler: int | None
    nbytes: int
    users: set[int] = field(default_factory=set)
    waiting: list[int] = field(default_factory=list)
    tenants: set[str] = field(default_factory=set)
    """Tenants whose newest engine has used this master. It is dropped once it is idle and none of
    them is a tenant for which masters are kept.
    """
    left: int = 0
    """Number that is higher the later the last user ended; the idle master with the lowest is
    dropped first.
    """
    unfit: bool = False

    @property
    def idle(self) -> bool:
        """True if no engine uses or fills this master."""
        return self.filler is None and not self.users


class KeeperBooks:
    """Record of all masters. `idle_bytes` bounds masters that no engine uses, `most_bytes` all.

    Complete masters are dropped only while they are idle: those in use stay, even if they alone
    exceed `most_bytes`. An incomplete master is dropped when the member that fills it has gone.
    """

    def __init__(self, idle_bytes: int, most_bytes: int) -> None:
        self._idle_bytes, self._most_bytes = idle_bytes, most_bytes
        self.masters: dict[str, MasterBook] = {}
        self._members: dict[int, tuple[str, str]] = {}
        """Identity and tenant of each member that was not turned away."""
        self._unfit: dict[str, str] = {}
        """Reasons why weights are not kept, by their identity."""
        self._ends = count(1)
        self._for: frozenset[str] | None = None
        """Tenants for which idle masters are kept; None, until `keeps_for` is called, stands for
        all.
        """

    # -- what is known ------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes of masters that engines use or fill."""
        return sum(m.nbytes for m in self.masters.values() if not m.idle)

    @property
    def idle_bytes(self) -> int:
        """Bytes of masters (copies of weights in host memory) that no engine uses."""
        return sum(m.nbytes for m in self.masters.values() if m.idle)

    @property
    def tenants(self) -> list[str]:
        """Sorted names of the tenants for which a complete master is kept."""
        whole = (m for m in self.masters.values() if m.filler is None and not m.unfit)
        return sorted(tenant for master in whole for tenant in self._kept_for(master))

    # -- events -------------------------------------------------------------------------

    def asked(self, member: int, tenant: str, identity: str, nbytes: int) -> list[KeeperDeed]:
        """A new member asks for the master of the weights `identity`, of about `nbytes`.

        Orders: the member fills it if there is none, gets it if it is complete, and is turned away
        if these weights are unfit. While another member fills it there are no orders: the new
        member waits. More orders drop idle masters that exceed the bounds.
        """
        if (why := self._unfit.get(identity)) is not None:
            return [TurnAway(member, why)]
        self._members[member] = (identity, tenant)
        if (master := self.masters.get(identity)) is None:
            self.masters[identity] = MasterBook(member, nbytes)
            return [LetFill(member, identity), *self._make_room()]
        if master.filler is not None:
            master.waiting.append(member)
            return []
        return [self._given(member, master), *self._make_room()]

    def filled_by(self, member: int) -> str:
        """Identity of the weights whose master `member` fills. Raises `KeyError` if it fills
        none.
        """
        identity, _ = self._members[member]
        if self.masters[identity].filler != member:
            raise KeyError(member)
        return identity

    def filled(self, member: int, nbytes: int) -> list[KeeperDeed]:
        """Note that `member` has filled its master, of `nbytes`. The orders give the master to the
        members that wait for it, and drop idle masters that exceed the bounds. Raises `KeyError` if
        `member` fills none.
        """
        master = self.masters[self.filled_by(member)]
        master.filler, master.nbytes = None, nbytes
        self._given(member, master)
        waiting, master.waiting = master.waiting, []
        return [*(self._given(one, master) for one in waiting), *self._make_room()]

    def unfit(self, member: int, why: str) -> list[KeeperDeed]:
        """`member` reports that the weights it asked for cannot be kept, and does not use their
        master any more, which is dropped as soon as no other member does.

        Members that wait for these weights, or ask for them later, are turned away.
        """
        identity, _ = self._members.pop(member)
        self._unfit[identity] = why
        master = self.masters[identity]
        master.unfit = True
        turned = [TurnAway(one, why) for one in master.waiting]
        for one in master.waiting:
            del self._members[one]
        master.waiting.clear()
        return [*turned, *self._left(member, identity)]

    def gone(self, member: int) -> list[KeeperDeed]:
        """`member` has ended. If it was filling a master, that one is dropped, and the next member
        that waits fills a new one. Idle masters that exceed the bounds are dropped.

        There are no orders for a member that was turned away before.
        """
        if (known := self._members.pop(member, None)) is None:
            return []
        identity, master = known[0], self.masters[known[0]]
        if member in master.waiting:
            master.waiting.remove(member)
            return []
        if master.filler == member and master.waiting:
            master.filler = master.waiting.pop(0)
            return [DropMaster(identity), LetFill(master.filler, identity)]
        return self._left(member, identity)

    def keeps_for(self, tenants: Iterable[str]) -> list[KeeperDeed]:
        """Keep idle masters only for these tenants from now on; the orders drop the others."""
        self._for = frozenset(tenants)
        return self._make_room()

    def forgets(self, tenant: str) -> list[KeeperDeed]:
        """Keep no idle master for `tenant`, which will not start again.

        An engine of this tenant that still runs keeps its master.
        """
        for master in self.masters.values():
            master.tenants.discard(tenant)
        return self._make_room()

    # -- inside -------------------------------------------------------------------------

    def _kept_for(self, master: MasterBook) -> set[str]:
        return master.tenants if self._for is None else master.tenants & self._for

    def _given(self, member: int, master: MasterBook) -> GiveMaster:
        identity, tenant = self._members[member]
        for other in self.masters.values():
            other.tenants.discard(tenant)
        master.tenants.add(tenant)
        master.users.add(member)
        return GiveMaster(member, identity)

    def _left(self, member: int, identity: str) -> list[KeeperDeed]:
        master = self.masters[identity]
        if master.filler == member:  # a master that is not complete is of no use
            del self.masters[identity]
            return [DropMaster(identity)]
        master.users.remove(member)
        if master.users:
            return []
        master.left = next(self._ends)
        return self._make_room()

    def _make_room(self) -> list[KeeperDeed]:
        """Orders that drop idle masters: first all that are kept for no tenant, then the longest
        idle ones until both bounds hold.
        """
        return list(self._drops())

    def _drops(self) -> Iterator[DropMaster]:
        idle = {name: m for name, m in self.masters.items() if m.idle}
        nobodys = {name for name, m in idle.items() if m.unfit or not self._kept_for(m)}
        for name in sorted(idle, key=lambda name: (name not in nobodys, idle[name].left)):
            over = self.idle_bytes > self._idle_bytes
            if over or self.idle_bytes + self.used_bytes > self._most_bytes or name in nobodys:
                del self.masters[name]
                yield DropMaster(name)
