"""vLLM's block pool, made elastic.

The classes are swapped in by assigning ``__class__`` to the objects that vLLM built, because
its managers hold references to them. One invariant carries everything: the free queue only
holds blocks whose memory is mapped. A block that is unmapped or retiring is in no queue, so
nothing in vLLM can hand it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from vllm.v1.core.block_pool import BlockPool


class Extent(Enum):
    """What an extent of KV blocks is doing."""

    UNMAPPED = "unmapped"
    USABLE = "usable"
    RETIRING = "retiring"


class ElasticBlockPool(BlockPool):
    """A pool over a universe of blocks of which only some have memory."""

    num_gpu_blocks: int
    state: list[Extent]
    retiring: dict[int, int]
    """Extents that begin to leave, and how many of their blocks are still used."""
    _giving = False
    blocks_again = 0
    """Cached blocks that no request had and that one took again for what they hold."""
    pinned: dict[int, Any]
    """Blocks that a copy reads, by number: nobody is given one, and none is unmapped."""
    has_copy: Callable[[Any], bool]
    """Whether a cached block is also kept below the device."""
    evicting: Callable[[Any], None]
    """Told of a cached block that is given to a request, before it forgets what it holds."""

    def become_elastic(self, extent_blocks: int, usable_extents: int) -> None:
        """Start with the first `usable_extents`; the others leave the free queue."""
        self.extent_blocks = extent_blocks
        self.state = [Extent.UNMAPPED] * (self.num_gpu_blocks // extent_blocks)
        self.retiring = {}
        self._nothing_below()
        for block in self.blocks[usable_extents * extent_blocks :]:
            self.free_block_queue.remove(block)
        for extent in range(usable_extents):
            self.state[extent] = Extent.USABLE
        self.usable_blocks = usable_extents * extent_blocks

    def become_empty(self) -> None:
        """Of a model without a KV cache: vLLM's null block is no memory."""
        self.extent_blocks, self.usable_blocks = 1, 0
        self.state = []
        self.retiring = {}
        self._nothing_below()

    def _nothing_below(self) -> None:
        self.pinned = {}
        self.has_copy = lambda block: False
        self.evicting = lambda block: None

    # -- reading ------------------------------------------------------------------------

    def blocks_of(self, extent: int) -> Sequence[Any]:
        """The blocks of one extent."""
        return self.blocks[extent * self.extent_blocks : (extent + 1) * self.extent_blocks]

    def backed_extents(self) -> int:
        """Extents that hold memory: usable or retiring."""
        return self.usable_blocks // self.extent_blocks + len(self.retiring)

    def unmapped(self, count: int) -> list[int]:
        """Up to `count` unmapped extents, lowest first, which keeps live blocks low."""
        found: list[int] = []
        for extent, state in enumerate(self.state):
            if len(found) == count:
                break
            if state is Extent.UNMAPPED:
                found.append(extent)
        return found

    def busy_extents(self) -> int:
        """Backed extents that cannot leave: with blocks of requests, and then the null block's.

        0 if no request has a block. Less than this an engine cannot hold, whatever it is told.
        """
        if not self.state:
            return 0
        if self.extent_blocks == 1:
            busy = self.usable_blocks - 1 - self.free_block_queue.num_free_blocks
            busy += sum(self.retiring.values())
            return busy + 1 if busy else 0
        busy = sum(map(self._is_busy, range(1, len(self.state))))
        return busy + 1 if busy or self._is_busy(0) else 0

    def _is_busy(self, extent: int) -> bool:
        if self.state[extent] is Extent.UNMAPPED:
            return False
        return any(block.ref_cnt > 0 and not block.is_null for block in self.blocks_of(extent))

    def idle_cached_blocks(self) -> int:
        """Cached blocks that no request has: about, since those in use count as cached.

        Counting them exactly would be a look at every block for each report.
        """
        used = self.usable_blocks - 1 - self.get_num_free_blocks()
        return max(0, len(self.cached_block_hash_to_block) - max(0, used))

    def touch(self, blocks: Sequence[Any]) -> None:
        """vLLM's: a request takes blocks for what they hold."""
        self.blocks_again += sum(b.ref_cnt == 0 and not b.is_null for b in blocks)
        super().touch(blocks)

    # -- growing ------------------------------------------------------------------------

    def add(self, extents: Sequence[int]) -> None:
        """Memory has been mapped: the blocks may be handed out, before cached prefixes are."""
        fresh: list[Any] = []
        for extent in extents:
            assert self.state[extent] is Extent.UNMAPPED, extent
            self.state[extent] = Extent.USABLE
            fresh += self.blocks_of(extent)
        self.usable_blocks += len(fresh)
        self.free_block_queue.prepend_n(fresh)

    def unretire(self, count: int) -> int:
        """Call back up to `count` retiring extents; returns how many came back."""
        back = sorted(self.retiring, key=lambda extent: -self.retiring[extent])[:count]
        for extent in back:
            del self.retiring[extent]
            self.state[extent] = Extent.USABLE
            self.usable_blocks += self.extent_blocks
            self.free_block_queue.prepend_n(
                [b for b in self.blocks_of(extent) if b.ref_cnt == 0 and not b.is_null]
            )
        return len(back)

    # -- shrinking: retire now, unmap when empty and fenced -----------------------------

    def pick_retirees(self, count: int) -> list[int]:
        """Extents to hand back: emptiest first, then with the fewest cached blocks that are nowhere
        else, then with the fewest cached blocks, then highest.

        Extent 0 stays: it holds the null block.
        """
        ranked = []
        for extent in range(1, len(self.state)):
            if self.state[extent] is not Extent.USABLE:
                continue
            blocks = self.blocks_of(extent)
            busy = sum(block.ref_cnt > 0 for block in blocks)
            cached = [block for block in blocks if block.block_hash is not None]
            lost = sum(not self.has_copy(block) for block in cached)
            ranked.append((busy, lost, len(cached), -extent))
        return [-rank[-1] for rank in sorted(ranked)[:count]]

    def retire(self, extents: Sequence[int]) -> None:
        """Take the extents out of circulation; cached prefixes in them are forgotten."""
        for extent in extents:
            assert self.state[extent] is Extent.USABLE, extent
            self.state[extent] = Extent.RETIRING
            busy = 0
            for block in self.blocks_of(extent):
                self._maybe_evict_cached_block(block)
                if block.ref_cnt == 0:
                    self.free_block_queue.remove(block)
                else:
                    busy += 1
            self.retiring[extent] = busy
            self.usable_blocks -= self.extent_blocks

    def emptied(self) -> list[int]:
        """Retiring extents that no request uses any more."""
        return [extent for extent, busy in self.retiring.items() if busy == 0]

    def drop(self, extents: Sequence[int]) -> None:
        """The memory of these emptied extents is being unmapped."""
        for extent in extents:
            busy = self.retiring.pop(extent)
            assert busy == 0, (extent, busy)
            self.state[extent] = Extent.UNMAPPED

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """vLLM's, except that a block of a retiring extent does not come back."""
        if not self.retiring:
            super().free_blocks(ordered_blocks)
            return
        ordered_blocks = list(ordered_blocks)
        super().free_blocks(ordered_blocks)
        for block in ordered_blocks:
            extent = block.block_id // self.extent_blocks
            if extent in self.retiring and block.ref_cnt == 0 and not block.is_null:
                # It may have been cached again since its extent began to retire.
                self._maybe_evict_cached_block(block)
                self.free_block_queue.remove(block)
                self.retiring[extent] -= 1

    # -- eviction -------------------------------------------------------------------------

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        """vLLM's, which evicts what it gives. What is evicted elsewhere is not worth a copy."""
        self._giving = True
        try:
            given: list[Any] = super().get_new_blocks(num_blocks)
            return given
        finally:
            self._giving = False

    def _maybe_evict_cached_block(self, block: Any) -> bool:
        if self._giving and block.block_hash is not None:
            self.evicting(block)
        return bool(super()._maybe_evict_cached_block(block))

    def forget(self, blocks: Sequence[Any]) -> None:
        """Nobody finds these any more, but for what others have as well."""
        for block in blocks:
            users = block.ref_cnt - (block.block_id in self.pinned)
            if users == 1 and not block.is_null:
                self._maybe_evict_cached_block(block)

    # -- copies that read blocks ---------------------------------------------------------

    def pin(self, blocks: Sequence[Any]) -> None:
        """A copy begins to read these: as if a request used them."""
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1
            self.pinned[block.block_id] = block

    def unpin(self, blocks: Sequence[Any]) -> None:
        """The copy is done. What nobody else uses is evicted first: its content is kept below."""
        back = []
        for block in blocks:
            del self.pinned[block.block_id]
            block.ref_cnt -= 1
            extent = block.block_id // self.extent_blocks
            if block.ref_cnt > 0:
                continue
            if extent in self.retiring:
                self._maybe_evict_cached_block(block)
                self.retiring[extent] -= 1
            else:
                back.append(block)
        self.free_block_queue.prepend_n(back)

    def only_pinned(self) -> int:
        """Blocks that copies read and no request uses: soon free."""
        return sum(block.ref_cnt == 1 for block in self.pinned.values())

    # -- what would assume that the whole universe has memory ---------------------------

    def get_usage(self) -> float:
        """Share of the usable blocks in use, 0 to 1."""
        total = self.usable_blocks - 1
        return 1.0 - self.get_num_free_blocks() / total if total > 0 else 0.0

    def reset_prefix_cache(self) -> bool:
        """vLLM's, which counts blocks in use against the number of blocks there are."""
        universe = self.num_gpu_blocks
        # A retiring extent's idle blocks are in no queue, yet not in use either.
        self.num_gpu_blocks = self.usable_blocks + sum(self.retiring.values())
        try:
            return bool(super().reset_prefix_cache())
        finally:
            self.num_gpu_blocks = universe

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless the free queue and the states agree. O(blocks)."""
        queued = {b.block_id for b in self.free_block_queue.get_all_free_blocks()}
        assert len(queued) == self.free_block_queue.num_free_blocks
        for block in self.blocks[1:]:
            extent = block.block_id // self.extent_blocks
            state = self.state[extent] if extent < len(self.state) else Extent.UNMAPPED
            in_queue = block.block_id in queued
            if state is Extent.USABLE:
                assert in_queue == (block.ref_cnt == 0), block
            else:
                assert not in_queue, block
                assert state is Extent.RETIRING or block.ref_cnt == 0, block
