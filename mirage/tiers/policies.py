"""Orders in which the blocks of one tenant are evicted: LRU or ARC. Pure.

A policy knows names and their uses, but no sizes and no clock: recency is the order of the calls.
The caller that asks for victims skips names that may not go at present.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from mirage.tiers.blocks import Name


class EvictionPolicy(Protocol):
    """Eviction order of the blocks of one tenant."""

    def add(self, name: Name) -> None:
        """Add a block: it is a candidate for eviction from now on."""

    def use(self, name: Name) -> None:
        """Note that the block was used; nothing happens if it is not held."""

    def evict(self, name: Name) -> None:
        """Remove the block because its room is needed; ARC keeps its name as a ghost."""

    def drop(self, name: Name) -> None:
        """Forget the block, without leaving a ghost (ARC's memory of an evicted name); nothing
        happens if it is not held."""

    def victims(self) -> Iterator[Name]:
        """Return an iterator over all held names, first victim first. It is valid until a block is
        added, used or removed."""

    def __len__(self) -> int:
        """Return the number of held names."""


class LRU:
    """Eviction policy: the least recently used block goes first."""

    def __init__(self) -> None:
        self._held: OrderedDict[Name, None] = OrderedDict()

    def add(self, name: Name) -> None:
        self._held[name] = None
        self._held.move_to_end(name)

    def use(self, name: Name) -> None:
        if name in self._held:
            self._held.move_to_end(name)

    def evict(self, name: Name) -> None:
        self._held.pop(name, None)

    drop = evict

    def victims(self) -> Iterator[Name]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


class ARC:
    """Adaptive replacement (Megiddo and Modha, FAST 2003): blocks used once, blocks used again, and
    ghosts.

    The cache's size c is the number of blocks that it holds at the moment, since its budget
    changes. With T for held blocks and B for ghosts: |T1| + |B1| <= c, all four <= 2 c, 0 <= target
    <= c.
    """

    def __init__(self) -> None:
        self.once: OrderedDict[Name, None] = OrderedDict()
        """T1: blocks used once. All four are ordered least recently used first."""
        self.again: OrderedDict[Name, None] = OrderedDict()
        """T2: blocks used again."""
        self.once_ghosts: OrderedDict[Name, None] = OrderedDict()
        """B1: ghosts of blocks used once."""
        self.again_ghosts: OrderedDict[Name, None] = OrderedDict()
        """B2: ghosts of blocks used again."""
        self.target = 0.0
        """p: number of blocks in `once` that are kept."""

    def add(self, name: Name) -> None:
        if name in self.once or name in self.again:
            self.use(name)
            return
        b1, b2 = len(self.once_ghosts), len(self.again_ghosts)
        if name in self.once_ghosts:
            self.target += max(1.0, b2 / b1)
            del self.once_ghosts[name]
            self.again[name] = None
        elif name in self.again_ghosts:
            self.target -= max(1.0, b1 / b2)
            del self.again_ghosts[name]
            self.again[name] = None
        else:
            self.once[name] = None
        self._trim()

    def use(self, name: Name) -> None:
        if name in self.once:
            del self.once[name]
            self.again[name] = None
        elif name in self.again:
            self.again.move_to_end(name)

    def evict(self, name: Name) -> None:
        if name in self.once:
            del self.once[name]
            self.once_ghosts[name] = None
        elif name in self.again:
            del self.again[name]
            self.again_ghosts[name] = None
        self._trim()

    def drop(self, name: Name) -> None:
        self.once.pop(name, None)
        self.again.pop(name, None)
        self._trim()

    def victims(self) -> Iterator[Name]:
        once, again = iter(self.once), iter(self.again)
        left = len(self.once)
        for _ in range(len(self)):
            first, second = (once, again) if left and left > self.target else (again, once)
            name = next(first, None)
            if name is None:
                name, first = next(second), second
            left -= first is once
            yield name

    def __len__(self) -> int:
        return len(self.once) + len(self.again)

    def _trim(self) -> None:
        size = len(self)
        self.target = min(max(self.target, 0.0), float(size))
        while len(self.once_ghosts) > size - len(self.once):
            self.once_ghosts.popitem(last=False)
        while len(self.again_ghosts) > size - len(self.once_ghosts):
            self.again_ghosts.popitem(last=False)


POLICIES: dict[str, Callable[[], EvictionPolicy]] = {
    "lru": LRU,
    "arc": ARC,
}
"""Policies by their names in a configuration."""
