"""Place of every block, and the copies that move it, in time. Times are picoseconds.

A block is on one tier; a moving block is there when its copy has ended. A block that was loaded
leaves its copy below while no other block needs that place. A full block never changes, so it can
go down again at no cost. A tier is a number of places. A place that is given back can be used from
the moment its block's copy has ended.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from enum import IntEnum

from mirage.simulate.hierarchy import Speed
from mirage.simulate.lanes import Lane
from mirage.tiers.blocks import Name


class Tier(IntEnum):
    """Tiers, from the fastest to the largest."""

    DEVICE = 0
    HOST = 1
    SSD = 2


@dataclass(frozen=True)
class Sizes:
    """Blocks that each tier holds, and bytes of a block."""

    device: int
    host: int
    ssd: int
    block_bytes: int


class FullError(Exception):
    """Error: a tier has no free place, and none can be made."""


class Places:
    """Places of all blocks. `host` is the link between device and host memory, `ssd` the link of
    the disk, None if there is no disk.
    """

    def __init__(self, sizes: Sizes, host: Speed, ssd: Speed | None) -> None:
        self.sizes = sizes
        self.at: dict[Name, Tier] = {}
        self.copies: dict[Name, Tier] = {}
        """Tier below the device that still has a copy of a block, for blocks on the device; the
        oldest copy first."""
        self.up, self.down = host.lane(), host.lane()
        disk = ssd or host
        self.read, self._write = disk.lane(), disk.lane()
        self._free = {
            tier: [0] * number
            for tier, number in zip(Tier, (sizes.device, sizes.host, sizes.ssd), strict=True)
        }
        """Times at which the empty places of each tier can be taken, the earliest first."""
        self._ready: dict[Name, int] = {}
        self.blocks_up, self.blocks_down = 0, 0

    def free(self, tier: Tier) -> int:
        """Number of places of a tier that hold nothing."""
        return len(self._free[tier])

    def holds(self, tier: Tier) -> bool:
        """True if a tier has any places."""
        return self._numbers[tier] > 0

    def ready(self, name: Name) -> int:
        """Time at which a block has arrived at its tier, or will; 0 if it has never moved."""
        return self._ready.get(name, 0)

    def put(self, name: Name, tier: Tier) -> int:
        """Give a new block a place of a tier; return the time from which it can be written. Raises
        `FullError` if no place is free."""
        at = self._take(tier)
        self.at[name] = tier
        return at

    def remove(self, name: Name, now: int) -> None:
        """Remove a block that no request needs."""
        self.written(name)
        insort(self._free[self.at.pop(name)], max(now, self._ready.pop(name, 0)))

    def written(self, name: Name) -> None:
        """Note that a block changes: its copy below, if any, is outdated and gives up its place."""
        if name in self.copies:
            insort(self._free[self.copies.pop(name)], self.ready(name))

    def drop_copy(self, tier: Tier) -> bool:
        """Drop the oldest copy that a tier has of a block on the device, which frees its place;
        False if the tier has none.
        """
        name = next((name for name, at in self.copies.items() if at is tier), None)
        if name is None:
            return False
        self.written(name)
        return True

    def move(self, name: Name, tier: Tier, now: int, *, patient: bool = False) -> int:
        """Move a block from time `now` on; return the time at which its copy ends. Raises
        `FullError` if the tier has no free place. A `patient` move takes the place that becomes
        free last, so that urgent moves find the others.
        """
        source = self.at[name]
        start = max(now, self.ready(name))
        if self.copies.get(name) is tier:
            del self.copies[name]
            end = start
        else:
            end = self._copy(source, tier, max(start, self._take(tier, patient)))
        if tier is Tier.DEVICE:
            self.copies[name] = source
        else:
            insort(self._free[source], end)
        self.at[name] = tier
        self._ready[name] = end
        return end

    def check(self) -> None:
        """Check in each tier that every place has a block or a copy, or is free."""
        held = [*self.at.values(), *self.copies.values()]
        for tier, number in zip(Tier, self._numbers, strict=True):
            assert held.count(tier) + self.free(tier) == number, (tier, number)
        assert all(self.at[name] is Tier.DEVICE for name in self.copies), "a copy of a copy"

    @property
    def _numbers(self) -> tuple[int, int, int]:
        return self.sizes.device, self.sizes.host, self.sizes.ssd

    def _take(self, tier: Tier, patient: bool = False) -> int:
        if not self._free[tier]:
            raise FullError(tier.name)
        return self._free[tier].pop(-1 if patient else 0)

    def _copy(self, source: Tier, target: Tier, start: int) -> int:
        """Copy a block from time `start` on, and return the time at which the copy ends. A copy
        between device and disk goes through a buffer in host memory, which is none of the host
        tier's places.
        """
        lanes = self._lanes(source, target)
        if source is Tier.DEVICE:
            self.blocks_down += 1
        if target is Tier.DEVICE:
            self.blocks_up += 1
        for lane in lanes:
            start = lane.copy(start, self.sizes.block_bytes)
        return start

    def _lanes(self, source: Tier, target: Tier) -> list[Lane]:
        if source > target:
            return [self.read] * (source is Tier.SSD) + [self.up] * (target is Tier.DEVICE)
        return [self.down] * (source is Tier.DEVICE) + [self._write] * (target is Tier.SSD)
