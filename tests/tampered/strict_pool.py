"""A pool in its engine's process: keeps `mirage.tiers.contract` strictly, and fails on demand.

Bytes of places that nobody may read are spoiled at once, so that who reads them is found out.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping

from mirage.tiers.contract import BlockPlace, Key, LentBy, Lookup, Medium, Member


class StrictPool:
    """`blocks` places in a memory file. Least recently used blocks make room."""

    def __init__(self, member: Member, blocks: int = 4096, peers: int = 3) -> None:
        """Make every `peers`th place one of a peer."""
        self.member, self.most, self._peers = member, blocks, peers
        descriptor = os.memfd_create("strict-pool")
        os.ftruncate(descriptor, blocks * member.block_bytes)
        self._region = mmap.mmap(descriptor, 0)
        os.close(descriptor)
        self._free = list(range(blocks))
        self._held: dict[Key, int] = {}
        self._reserved: dict[Key, int] = {}
        self._seeking: dict[str, dict[Key, Lookup]] = {}
        self.silent = False
        """True if it answers nothing any more."""
        self.dead = False
        """True if its process is gone: it holds nothing, and reserves nothing."""
        self.loses = False
        """True if blocks that were READY are lost by the time they are loaded."""
        self.deep = False
        """True if a held block is BELOW until it is sought with `rise`."""
        self.slow = 0
        """Number of calls of `found` for which a key is COMING before it is READY."""
        self._asked: dict[tuple[str, Key], int] = {}
        self.evicted = self.committed = self.abandoned = 0
        self.sought = 0
        """Number of keys in all calls of `seek`."""

    # -- finding ------------------------------------------------------------------------

    def seek(self, request: str, keys: Iterable[Key], *, rise: bool = True) -> None:
        known = self._seeking.setdefault(request, {})
        for key in keys:
            self.sought += 1
            if key in self._held:
                self._held[key] = self._held.pop(key)
            if known.get(key) is not Lookup.READY:
                here = Lookup.BELOW if self.deep and not rise else Lookup.READY
                known[key] = here if key in self._held else Lookup.ABSENT

    def found(self, request: str, key: Key) -> Lookup:
        if self.dead:
            return Lookup.ABSENT
        if self.silent:
            return Lookup.UNKNOWN
        state = self._seeking.get(request, {}).get(key, Lookup.ABSENT)
        asked = self._asked[request, key] = self._asked.get((request, key), 0) + 1
        return Lookup.COMING if state is Lookup.READY and asked <= self.slow else state

    def places(self, request: str, keys: Iterable[Key]) -> list[BlockPlace]:
        if self.dead or self.loses:
            raise KeyError(request)
        known, wanted = self._seeking[request], list(keys)
        if any(known.get(key) is not Lookup.READY for key in wanted):
            raise KeyError(request)
        return [self._place(self._held[key]) for key in wanted]

    def leave(self, request: str) -> None:
        self._seeking.pop(request, None)
        self.shrink(self.most)

    # -- storing ------------------------------------------------------------------------

    def reserve(self, keys: Iterable[Key]) -> Mapping[Key, BlockPlace]:
        given: dict[Key, BlockPlace] = {}
        if self.dead or self.silent:
            return given
        for key in keys:
            assert key not in self._reserved, "reserved twice"
            if key in self._held or len(self._held) + len(self._reserved) >= self.most + 1:
                continue
            if len(self._held) + len(self._reserved) >= self.most and not self._evict():
                continue
            self._reserved[key] = self._free.pop()
            given[key] = self._place(self._reserved[key])
        return given

    def commit(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._held[key] = self._reserved.pop(key)
            self.committed += 1

    def abandon(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._spoil(self._reserved.pop(key))
            self.abandoned += 1

    def memory(self, medium: Medium) -> memoryview:
        if medium is Medium.SSD:
            raise KeyError(medium)
        return memoryview(self._region)

    def lenders(self) -> tuple[LentBy, ...]:
        return ()

    def locks(self) -> None:
        """Return None, because no slab is locked."""

    def bytes_per_s(self, medium: Medium) -> float | None:
        return 2e9 if medium is Medium.PEER else None

    @property
    def lost(self) -> bool:
        return False

    def close(self) -> None:
        self.dead = True

    # -- what tests do to it ------------------------------------------------------------

    def shrink(self, blocks: int) -> None:
        """Hold at most so many blocks, except pinned ones."""
        self.most = blocks
        while len(self._held) + len(self._reserved) > self.most and self._evict():
            pass

    def forget(self) -> None:
        """Evict all blocks that are not pinned."""
        most, self.most = self.most, 0
        self.shrink(0)
        self.most = most

    @property
    def held(self) -> int:
        """Number of held blocks."""
        return len(self._held)

    @property
    def idle(self) -> bool:
        """True if no request seeks, and no block is reserved."""
        return not self._seeking and not self._reserved

    def _evict(self) -> bool:
        found = (pair for known in self._seeking.values() for pair in known.items())
        pinned = {key for key, state in found if state is Lookup.READY}
        for key in self._held:
            if key not in pinned:
                self._spoil(self._held.pop(key))
                self.evicted += 1
                return True
        return False

    def _spoil(self, number: int) -> None:
        size = self.member.block_bytes
        self._region[number * size : (number + 1) * size] = b"\xff" * size
        self._free.append(number)

    def _place(self, number: int) -> BlockPlace:
        medium = Medium.HOST if number % self._peers else Medium.PEER
        return BlockPlace(medium, number * self.member.block_bytes)
