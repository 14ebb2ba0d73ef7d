"""Blocks that an engine has offered to the pool, and those that it lost without a copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from mirage.engine.tiers.recent import Recent
from mirage.tiers.contract import Key

AGAIN_S = 1.0
"""Seconds after which a block that found no room is offered again."""
MOST_KEYS = 512
"""Largest number of blocks that are offered in one message."""


class Offers:
    """Record of the blocks that the engine has offered to the pool. It tells the free queue which
    cached blocks have a copy there (`ContentBelow`). Times are seconds."""

    def __init__(self, recent: Recent, clock: Callable[[], float] = time.monotonic) -> None:
        self._recent, self.now = recent, clock
        self._offered: dict[int, tuple[Key, float]] = {}
        """Offered key of each block, and the time before which the offer is not repeated."""
        self._lost: dict[Key, Any] = {}
        """Blocks that the present schedule() evicted without a copy, by key."""

    def worth(self, block: Any, now: float) -> bool:
        """True if the content of a block that is not being copied should be offered to the pool: it
        is cached, no copy of the same content is in progress, the pool is not known to have it, and
        it was not offered lately."""
        if block.block_hash is None or block.is_null:
            return False
        # The same content may be copied out of another block.
        if self._recent.any_under_way([Key(bytes(block.block_hash))]):
            return False
        key, until = self._offered.get(block.block_id, (None, 0.0))
        return key != block.block_hash or now >= until

    def made(self, keys: Mapping[int, Key]) -> None:
        """Note that these contents, by block, were offered. If the pool takes one, `held` follows
        when it is copied. If not, the pool has it already or has no room, and does not say which:
        it is offered again after `AGAIN_S` seconds."""
        until = self.now() + AGAIN_S
        self._offered.update((block, (key, until)) for block, key in keys.items())

    def held(self, blocks: Sequence[int], keys: Sequence[Key]) -> None:
        """Note that the pool now has copies of these blocks."""
        for block, key in zip(blocks, keys, strict=True):
            self._offered[block] = (key, inf)

    def has_copy(self, block: Any) -> bool:
        """True if the pool, by the last news, has this block's content."""
        return self._offered.get(block.block_id) == (block.block_hash, inf)

    def evicting(self, block: Any) -> None:
        """Note that a cached block is given to a request: it loses its content next."""
        if len(self._lost) < MOST_KEYS and self.worth(block, self.now()):
            self._lost[Key(bytes(block.block_hash))] = block

    def take_lost(self) -> dict[Key, Any]:
        """Return the blocks evicted without a copy since the last call, by the key of their
        content."""
        lost, self._lost = self._lost, {}
        return lost
