"""vLLM's free blocks, of which each has memory.

vLLM's block pool gives, takes back and takes again every block through its free queue, which only
the pool has. `ElasticBlocks` stands in that queue's place and writes an `ExtentBook`. One
invariant carries everything: the queue only holds blocks whose memory is mapped. A block that is
unmapped or retiring is not in it, so nothing in vLLM can hand it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

from mirage.control.engine.extent_book import Extent, ExtentBook


class ContentBelow(Protocol):
    """The content of cached blocks that is kept below the device."""

    def has_copy(self, block: Any) -> bool:
        """True if the content of a cached block is kept there."""

    def evicting(self, block: Any) -> None:
        """A cached block is given to a request: it forgets its content next."""


class NothingBelow:
    """`ContentBelow` without a place for any."""

    def has_copy(self, block: Any) -> bool:
        """False."""
        return False

    def evicting(self, block: Any) -> None:
        """Its content is lost."""


class ElasticBlocks(FreeKVCacheBlockQueue):
    """The free queue of a pool over a universe of blocks of which only some have memory."""

    def __init__(
        self, pool: BlockPool, book: ExtentBook, below: ContentBelow | None = None
    ) -> None:
        """Free blocks of a `pool` that has given none yet; `book` says which of them are usable."""
        for block in pool.blocks:
            block.prev_free_block = block.next_free_block = None
        usable = pool.blocks[: book.usable_blocks]
        super().__init__([block for block in usable if not block.is_null])
        self.book, self._pool, self._below = book, pool, below or NothingBelow()
        self.blocks_again = 0
        """Cached blocks that no request had and that one took again for what they hold."""
        self.pinned: dict[int, Any] = {}
        """Blocks that a copy reads, by number."""
        pool.free_block_queue = self
        self._size_pool()

    def _size_pool(self) -> None:
        """The pool compares free blocks with `num_gpu_blocks`: those that are free or in use."""
        book = self.book
        self._pool.num_gpu_blocks = max(1, book.usable_blocks + book.retiring_blocks)

    # -- vLLM's pool calls these ----------------------------------------------------------

    def popleft_n(self, n: int) -> list[Any]:
        """vLLM's: blocks are given to a request, which evicts what they hold."""
        given: list[Any] = super().popleft_n(n)
        for block in given:
            if block.block_hash is not None:
                self._below.evicting(block)
        self.book.take([block.block_id for block in given])
        return given

    def remove(self, block: Any) -> None:
        """vLLM's: a request takes a block again for what it holds."""
        self._take(block)
        self.blocks_again += 1

    def prepend_n(self, blocks: list[Any]) -> None:
        """vLLM's: blocks come back, to be given first."""
        super().prepend_n(self._given_back(blocks))

    def append_n(self, blocks: list[Any]) -> None:
        """vLLM's: blocks come back, to be given last."""
        super().append_n(self._given_back(blocks))

    def _given_back(self, blocks: list[Any]) -> list[Any]:
        """Blocks that may be given again: those of a retiring extent are not, nor found again."""
        leaving = self.book.free([block.block_id for block in blocks])
        if not leaving:
            return blocks
        self._pool.evict_blocks(leaving)
        self._size_pool()
        return [block for block in blocks if block.block_id not in leaving]

    def _take(self, block: Any) -> None:
        super().remove(block)
        self.book.take((block.block_id,))

    # -- extents that come and go -----------------------------------------------------------

    def blocks_of(self, extent: int) -> Sequence[Any]:
        """The blocks of one extent."""
        numbers = self.book.blocks_of(extent)
        return self._pool.blocks[numbers.start : numbers.stop]

    def add(self, extents: Sequence[int]) -> None:
        """Memory has been mapped: the blocks may be handed out, before cached prefixes are."""
        self.book.add(extents)
        super().prepend_n([block for extent in extents for block in self.blocks_of(extent)])
        self._size_pool()

    def call_back(self, count: int) -> int:
        """Call back up to `count` retiring extents; returns how many came back."""
        back = self.book.call_back(count)
        for extent in back:
            super().prepend_n([block for block in self.blocks_of(extent) if not block.ref_cnt])
        self._size_pool()
        return len(back)

    def to_retire(self, count: int) -> list[int]:
        """Extents to hand back: those in the least use, then with the fewest cached blocks that are
        nowhere else, then with the fewest cached blocks, then highest.
        """
        return self.book.to_retire(count, self._loss)

    def _loss(self, extent: int) -> tuple[int, int]:
        cached = [block for block in self.blocks_of(extent) if block.block_hash is not None]
        return sum(not self._below.has_copy(block) for block in cached), len(cached)

    def retire(self, extents: Sequence[int]) -> None:
        """Take the extents out of circulation; cached prefixes in them are forgotten."""
        self.book.retire(extents)
        for extent in extents:
            self._pool.evict_blocks(set(self.book.blocks_of(extent)))
            for block in self.blocks_of(extent):
                if not block.ref_cnt:
                    super().remove(block)
        self._size_pool()

    # -- cached blocks ----------------------------------------------------------------------

    def idle_cached_blocks(self) -> int:
        """Cached blocks that no request has: about, since those in use count as cached.

        Counting them exactly would be a look at every block for each report.
        """
        used = self.book.usable_blocks - 1 - self.num_free_blocks
        return max(0, len(self._pool.cached_block_hash_to_block) - max(0, used))

    def is_cached(self, key: Any) -> bool:
        """True if a block holds what `key`, a hash with its group, names."""
        return self._pool.cached_block_hash_to_block.get_one_block(key) is not None

    def forget(self, blocks: Iterable[Any]) -> None:
        """Remove these blocks from the prefix cache, unless another request shares them."""
        self._pool.evict_blocks(
            {
                block.block_id
                for block in blocks
                if block.ref_cnt - (block.block_id in self.pinned) == 1 and not block.is_null
            }
        )

    # -- copies that read blocks ------------------------------------------------------------

    def pin(self, blocks: Iterable[Any]) -> None:
        """A copy begins to read these, which is a use of them.

        It has a reference of its own, as copies of vLLM's own offloading have: vLLM writes
        into a block with one reference, and nobody is given a block that has any.
        """
        for block in blocks:
            if not block.ref_cnt:
                self._take(block)
            block.ref_cnt += 1
            self.pinned[block.block_id] = block

    def unpin(self, blocks: Sequence[Any]) -> None:
        """The copy is done. What nobody else uses is evicted first: its content is kept below."""
        for block in blocks:
            del self.pinned[block.block_id]
            block.ref_cnt -= 1
        self.prepend_n([block for block in blocks if not block.ref_cnt])

    def only_pinned(self) -> int:
        """Blocks that copies read and no request uses: soon free."""
        return sum(block.ref_cnt == 1 for block in self.pinned.values())

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless free queue, references and book agree. O(blocks)."""
        self.book.check_integrity()
        queued = {block.block_id for block in self.get_all_free_blocks()}
        assert len(queued) == self.num_free_blocks
        used = [0] * len(self.book.state)
        for block in self._pool.blocks[1:]:
            extent = block.block_id // self.book.extent_blocks
            usable = extent < len(used) and self.book.state[extent] is Extent.USABLE
            assert (block.block_id in queued) == (usable and not block.ref_cnt), block
            if block.ref_cnt:
                used[extent] += 1
        assert used == self.book.used
