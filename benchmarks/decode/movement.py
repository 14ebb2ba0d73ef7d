"""Movements of KV blocks between tiers: down to make room, up when needed, in a policy's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from itertools import islice

from benchmarks.decode.places import FullError, Places, Tier
from mirage.tiers.blocks import Name
from mirage.tiers.policies import EvictionPolicy


class Movement:
    """Movements of blocks in one run. Blocks of requests in `staying` are never moved down. All
    times, `now` among them, are in picoseconds.
    """

    def __init__(self, places: Places, order: Callable[[], EvictionPolicy]) -> None:
        self.places = places
        self.orders = {tier: order() for tier in Tier}
        self.staying: Set[bytes] = frozenset()
        self.early: set[Name] = set()
        """Blocks that came ahead of need and were not needed yet."""

    def place(self, names: Iterable[Name]) -> None:
        """Place blocks that exist at the start: each on the fastest tier that has room."""
        for name in names:
            tier = next(tier for tier in Tier if self.places.free(tier))
            self.places.put(name, tier)
            self.orders[tier].add(name)

    def used(self, names: Iterable[Name]) -> None:
        for name in names:
            self.orders[Tier.DEVICE].use(name)

    def remove(self, names: Iterable[Name], now: int) -> None:
        for name in names:
            self.orders[self.places.at[name]].drop(name)
            self.places.remove(name, now)
            self.early.discard(name)

    def bring(self, names: list[Name], now: int) -> int:
        """Load blocks to the device, for each of which another block goes down if no place is free;
        return the time at which the last one arrives. Raises `FullError` if too few may go down.
        """
        victims = self._victims(Tier.DEVICE, len(names))
        ends = [now]
        for name in names:
            self._make_room(victims, now)
            ends.append(self._move(name, Tier.DEVICE, now))
        return max(ends)

    def bring_early(self, names: list[Name], spare: int, now: int) -> None:
        """Prefetch blocks to the device, of which `spare` places stay free; for each of them
        another block goes down if no further place is free. Stops without an error where only
        blocks of requests in `staying` could go down.
        """
        victims = self._victims(Tier.DEVICE, len(names) + spare)
        for name in names:
            if self.places.free(Tier.DEVICE) <= spare:
                victim = next(victims, None)
                if victim is None:
                    return
                self._sink(victim, now)
            self._move(name, Tier.DEVICE, now, patient=True)
            self.early.add(name)

    def bear(self, names: list[Name], now: int) -> int:
        """Give places on the device to blocks that the next step writes for the first time, for
        each of which another block goes down if no place is free; return the time from which all
        can be written. Raises `FullError` if too few may go down.
        """
        victims = self._victims(Tier.DEVICE, len(names))
        ends = [now]
        for name in names:
            self._make_room(victims, now)
            ends.append(self.places.put(name, Tier.DEVICE))
            self.orders[Tier.DEVICE].add(name)
        return max(ends)

    def clear(self, places: int, most: int, now: int) -> None:
        """Move at most `most` blocks down from time `now` on, until `places` places on the device
        are free."""
        for victim in islice(self._victims(Tier.DEVICE, places), most):
            self._sink(victim, now)

    def _victims(self, tier: Tier, places: int) -> Iterator[Name]:
        """Blocks to evict until `places` are free; fewer if there are not enough."""
        lacking = max(0, places - self.places.free(tier))
        return iter(list(islice(self._going(tier), lacking)))

    def _going(self, tier: Tier) -> Iterator[Name]:
        staying = self.staying
        return (n for n in self.orders[tier].victims() if n.fingerprint not in staying)

    def _make_room(self, victims: Iterator[Name], now: int) -> None:
        if not self.places.free(Tier.DEVICE):
            victim = next(victims, None)
            if victim is None:
                raise FullError("device")
            self._sink(victim, now)

    def _sink(self, name: Name, now: int) -> None:
        """Move a block down to the tier that has its copy, or to the next tier below that has or
        makes room.
        """
        places = self.places
        at = places.at[name]
        target = places.copies.get(name)
        if target is None:
            lower = (tier for tier in Tier if tier > at and places.holds(tier))
            target = next((tier for tier in lower if self._has_room(tier, now)), None)
        if target is None:
            raise FullError("all below " + at.name)
        self._move(name, target, now)
        self.early.discard(name)

    def _has_room(self, tier: Tier, now: int) -> bool:
        """True if a tier has room, perhaps after a copy was given up or its next victim went
        further down.
        """
        if self.places.free(tier) or self.places.drop_copy(tier):
            return True
        victim = None if tier is Tier.SSD else next(self._going(tier), None)
        if victim is not None:
            self._sink(victim, now)
        return victim is not None

    def _move(self, name: Name, tier: Tier, now: int, *, patient: bool = False) -> int:
        self.orders[self.places.at[name]].evict(name)
        end = self.places.move(name, tier, now, patient=patient)
        self.orders[tier].add(name)
        return end
