"""The tiers below a simulated device: the pools that engines use, and copies that take time.

The contents, their owners and evictions are decided by the code that serves, `mirage/tiers`. Its
actions take simulated time here. Times are picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from mirage.simulate.disk import Disk, HostBelow
from mirage.simulate.lanes import Lane
from mirage.tiers.below import Below, Nothing
from mirage.tiers.blocks import Name, Rise, Sink, Tell
from mirage.tiers.contract import Key, Lookup, Medium, Member
from mirage.tiers.core import Core
from mirage.tiers.policies import EvictionPolicy


class Hit(NamedTuple):
    """A block below the device: the medium that it lies in, and the time in picoseconds from which
    it can be copied to the device.
    """

    medium: Medium
    ready: int


@dataclass(frozen=True)
class Speed:
    """Capacity of one medium in bytes, its speed in each direction, and its latency until the first
    byte of a copy.
    """

    capacity: int
    bytes_per_s: float
    latency_ps: int

    def lane(self) -> Lane:
        return Lane(self.bytes_per_s, self.latency_ps)


class Hierarchy:
    """All tiers with a capacity. An engine calls `join` first, then `seek` for the blocks of a
    request, and `store` for blocks that leave the device.
    """

    def __init__(self, speeds: dict[Medium, Speed], policy: Callable[[], EvictionPolicy]) -> None:
        self.now = 0
        self.speeds = {m: s for m, s in speeds.items() if s.capacity}
        self.pools: list[_Pool] = []
        """Pools that are read directly, the fastest first."""
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._writers: dict[bytes, int] = {}
        self._guests = 0
        self.disk: Disk | None = None
        if Medium.SSD in self.speeds:
            ssd = self.speeds[Medium.SSD]
            self.disk = Disk(ssd.capacity, ssd.lane(), ssd.lane(), lambda: self.now, self._after)
        has_host = Medium.HOST in self.speeds
        if Medium.PEER in self.speeds:
            below = HostBelow(self._store_in_host, self._after) if has_host else Nothing()
            self._add(Medium.PEER, policy, below)
        if has_host:
            self._add(Medium.HOST, policy, self.disk or Nothing())

    def join(self, member: Member) -> int:
        """Add an engine; return its number as a guest."""
        for pool in self.pools:
            pool.members.append(pool.core.join(member))
            pool.block_bytes.append(member.block_bytes)
        self._guests += 1
        self._writers.setdefault(member.fingerprint, self._guests - 1)
        return self._guests - 1

    # -- what engines ask ---------------------------------------------------------------

    def seek(self, guest: int, request: int, names: Iterable[Name], now: int) -> list[Hit]:
        """Find the blocks of `names` in order, up to the first that is neither held nor on its way.
        They are not evicted before `leave` is called for the request; those on the disk begin to
        come up.
        """
        self.settle(now)
        found = []
        for name in names:
            hit = self._hit(guest, request, name)
            if hit is None:
                break
            found.append(hit)
        return found

    def leave(self, guest: int, request: int, now: int) -> None:
        """Note that a request of a guest (an engine) needs no more blocks of the tiers: it has
        loaded them, or computes them."""
        self.settle(now)
        for pool in self.pools:
            pool.answers.pop((pool.members[guest], request), None)
            pool.core.leave(pool.members[guest], request)
            self._carry_out(pool)

    def store(self, guest: int, names: list[Name], now: int) -> dict[Name, int]:
        """Begin to copy those of `names` that no tier holds to the tiers that engines read: each
        to the fastest one that has room.

        Returns the time in picoseconds at which each copy of `names` ends, of the new copies and of
        those under way.
        """
        self.settle(now)
        ends = {name: p.writes[name] for p in self.pools for name in names if name in p.writes}
        left = [name for name in names if not any(pool.core.has(name) for pool in self.pools)]
        for pool in self.pools:
            ends |= self._store(pool, guest, [name for name in left if name not in ends])
        return ends

    def settle(self, now: int) -> None:
        """Complete all copies that have ended by `now`."""
        while self._events and self._events[0][0] <= now:
            self.now, _, happen = heappop(self._events)
            happen()
            for pool in self.pools:
                self._carry_out(pool)
        self.now = now

    # -- inside -------------------------------------------------------------------------

    def _add(self, medium: Medium, policy: Callable[[], EvictionPolicy], below: Below) -> None:
        speed = self.speeds[medium]
        core = Core(speed.capacity, policy, below)
        below.begin(core, memoryview(b""))
        self.pools.append(_Pool(medium, core, speed.lane()))

    def _hit(self, guest: int, request: int, name: Name) -> Hit | None:
        for pool in self.pools:
            pool.core.seek(pool.members[guest], request, [name.key])
            self._carry_out(pool)
            answers = pool.answers.setdefault((pool.members[guest], request), {})
            found = answers.get(name.key, Lookup.ABSENT)
            rises = self.disk is not None and name in self.disk.ends
            if found is Lookup.READY:
                from_disk = answers.get(_risen(name.key)) is not None
                return Hit(Medium.SSD if from_disk else pool.medium, self.now)
            coming = found in (Lookup.COMING, Lookup.RISING)
            if coming and rises:
                assert self.disk is not None
                answers[_risen(name.key)] = Lookup.COMING
                return Hit(Medium.SSD, self.disk.ends[name])
            if coming:
                return Hit(pool.medium, pool.writes[name])
        return None

    def _store(self, pool: _Pool, guest: int, names: list[Name]) -> dict[Name, int]:
        member, by_key = pool.members[guest], {name.key: name for name in names}
        places = pool.core.reserve(member, by_key)
        self._carry_out(pool)
        ends = {name: pool.writes[name] for name in names if name in pool.writes}
        for key in places:
            end = pool.down.copy(self.now, pool.block_bytes[guest])
            ends[by_key[key]] = pool.writes[by_key[key]] = end
            self._after(end, partial(self._stored, pool, member, by_key[key]))
        return ends

    def _stored(self, pool: _Pool, member: int, name: Name) -> None:
        del pool.writes[name]
        pool.core.commit(member, [name.key])

    def _store_in_host(self, name: Name) -> int | None:
        """Begin a copy into host memory of a block that a peer is about to evict; return the time
        of its end, None if host memory has no room.
        """
        host = self.pools[-1]
        return self._store(host, self._writers[name.fingerprint], [name]).get(name)

    def _after(self, end: int, happen: Callable[[], None]) -> None:
        heappush(self._events, (end, next(self._order), happen))

    def _carry_out(self, pool: _Pool) -> None:
        """Carry out the core's decisions. Punching holes takes no time here."""
        core = pool.core
        while actions := core.actions():
            for action in actions:
                match action:
                    case Tell(seeker, key, found):
                        answers = pool.answers.setdefault(seeker, {})
                        answers[key] = found
                    case Sink(name, place, tenant):
                        if not core.below.sink(name, place, tenant):
                            core.sunk(name, whole=False)
                    case Rise(name, place):
                        if not core.below.rise(name, place):
                            core.risen(name, whole=False)


class _Pool:
    """One pool (`mirage.tiers.core.Core`) from which engines copy, and the numbers under which it
    knows them."""

    def __init__(self, medium: Medium, core: Core, down: Lane) -> None:
        self.medium, self.core, self.down = medium, core, down
        self.members: list[int] = []
        self.block_bytes: list[int] = []
        self.answers: dict[tuple[int, int | str], dict[Key, Lookup]] = {}
        self.writes: dict[Name, int] = {}
        """Times at which copies down that are under way will end, by block."""


def _risen(key: Key) -> Key:
    """Key under which `answers` notes that `key` came from the disk."""
    return Key(b"risen " + key)
