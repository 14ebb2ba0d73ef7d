"""Copies of KV blocks to the pool before they are lost: from the head of the free queue, and from
extents that retire.

A block is pinned in the block pool while it is copied. So no request gets it for new content, and
its extent is not unmapped, even if the request that computed it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import inf
from typing import Any

from mirage.engine.blockpool import ElasticBlocks
from mirage.engine.tiers.copier import Copier, CopyJob
from mirage.engine.tiers.counts import TierCounts
from mirage.engine.tiers.offers import AGAIN_S, MOST_KEYS, Offers
from mirage.engine.tiers.recent import Recent
from mirage.tiers.contract import BlockPlace, Key, Pool


class Stores:
    """Copies of one engine's blocks into the pool.

    `window` is the number of blocks at the head of the free queue that may be taken soon;
    `block_bytes` is the size of one block over all layers.
    """

    def __init__(
        self,
        blocks: ElasticBlocks,
        pool: Pool,
        copier: Copier,
        counts: TierCounts,
        recent: Recent,
        offers: Offers,
        *,
        window: int,
        block_bytes: int,
    ) -> None:
        self._blocks, self._pool, self._copier, self._counts = blocks, pool, copier, counts
        self._recent, self._offers = recent, offers
        self._window, self._block_bytes = window, block_bytes
        self._jobs: dict[CopyJob, tuple[list[Any], list[Key]]] = {}
        self._looked_at: tuple[int, int] | None = None
        """Head and length of the free queue at the last look."""
        self._look_again_s = 0.0

    @property
    def busy(self) -> bool:
        """True while a job of copies into the pool has not ended."""
        return bool(self._jobs)

    def look_ahead(self) -> None:
        """Store the next blocks of the free queue, which may be evicted soon. As long as no block
        is taken or returned, the queue is not looked through again for `AGAIN_S` seconds."""
        now = self._offers.now()
        first = self._blocks.fake_free_list_head.next_free_block
        assert first is not None
        seen = (first.block_id, self._blocks.num_free_blocks)
        if seen == self._looked_at and now < self._look_again_s:
            return
        self._looked_at, self._look_again_s = seen, now + AGAIN_S
        soon = islice(self._queued(), min(self._window, MOST_KEYS))
        self._store([block for block in soon if self._offers.worth(block, now)])

    def rescue(self) -> None:
        """Store blocks that were evicted while this step was scheduled; the step waits for the
        copies, since it overwrites the blocks.

        `look_ahead` has stored the next `window` blocks of the free queue before. A request whose
        prefix is loaded takes all its blocks in one step, which may be more.
        """
        lost = self._offers.take_lost()
        if lost and (job := self._begin(lost)) is not None:
            self._copier.before_steps(job)

    def demote(self, extents: Sequence[int], most_bytes: float) -> None:
        """Store cached content of extents that are about to retire, at most `most_bytes` bytes."""
        now = self._offers.now()
        cached = [
            block
            for extent in extents
            for block in self._blocks.blocks_of(extent)
            if block.block_id not in self._blocks.pinned and self._offers.worth(block, now)
        ]
        most = len(cached) if most_bytes == inf else int(most_bytes // self._block_bytes)
        for start in range(0, min(most, len(cached)), MOST_KEYS):
            self._store(cached[start : min(most, start + MOST_KEYS)])
        self._copier.issue(up=False)

    def harvest(self) -> None:
        """Unpin blocks whose copies to the pool have ended, and commit or abandon the copies."""
        for job in self._copier.finished(up=False):
            blocks, keys = self._jobs.pop(job)
            self._blocks.unpin(blocks)
            self._recent.end(keys, arrived=not job.failed)
            if job.failed:
                self._counts.failed_stores += len(blocks)
                self._pool.abandon(keys)
                continue
            self._pool.commit(keys)
            self._counts.stored_blocks += len(blocks)
            self._counts.bytes_down += len(blocks) * self._block_bytes
            self._offers.held([block.block_id for block in blocks], keys)

    def drain(self) -> bool:
        """Wait until all copies into the pool have ended; True if there were any."""
        if not self._jobs:
            return False
        self._copier.wait(up=False)
        self.harvest()
        return True

    def _queued(self) -> Iterator[Any]:
        """Yield the free queue from its head; vLLM's own list ends in a block without a
        successor."""
        block = self._blocks.fake_free_list_head.next_free_block
        while block is not None and block.next_free_block is not None:
            yield block
            block = block.next_free_block

    def _store(self, blocks: Sequence[Any]) -> None:
        by_key = {Key(bytes(block.block_hash)): block for block in blocks}
        if by_key:
            self._begin(by_key)

    def _begin(self, by_key: dict[Key, Any]) -> CopyJob | None:
        places = self._pool.reserve(list(by_key))
        self._offers.made({block.block_id: key for key, block in by_key.items()})
        taken: list[tuple[Key, Any, BlockPlace]] = [(k, by_key[k], p) for k, p in places.items()]
        if not taken:
            return None
        keys, stored = [key for key, _, _ in taken], [block for _, block, _ in taken]
        job = CopyJob(False, [block.block_id for block in stored], [place for _, _, place in taken])
        self._blocks.pin(stored)
        self._recent.begin(keys)
        self._jobs[job] = (stored, keys)
        self._copier.submit(job)
        return job
