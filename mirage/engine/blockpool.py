"""vLLM's free blocks, all of which have memory.

vLLM's block pool gives out, takes back and reuses every block through its free queue, which no
other object uses. `ElasticBlocks` takes that queue's place and writes an `ExtentBook`. Everything
depends on one invariant: the queue holds only blocks whose memory is mapped. A block that is
unmapped or retiring is not in it, so vLLM cannot give it to a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

from mirage.control.engine.extent_book import Extent, ExtentBook


class ContentBelow(Protocol):
    """Interface of the free queue to the tiers below the device, about cached blocks."""

    def has_copy(self, block: Any) -> bool:
        """True if the content of a cached block is kept below the device."""

    def evicting(self, block: Any) -> None:
        """Note that a cached block is given to a request: it loses its content next."""


class NothingBelow:
    """`ContentBelow` of an engine without tiers."""

    def has_copy(self, block: Any) -> bool:
        """Return False: no content is kept below."""
        return False

    def evicting(self, block: Any) -> None:
        """Do nothing: the block's content is lost."""


class ElasticBlocks(FreeKVCacheBlockQueue):
    """Free queue of a block pool in which only some of the blocks have memory."""

    def __init__(
        self, pool: BlockPool, book: ExtentBook, below: ContentBelow | None = None
    ) -> None:
        """Make the queue of a `pool` that has given no block yet; `book` tells which blocks have
        memory and may be given (usable)."""
        for block in pool.blocks:
            block.prev_free_block = block.next_free_block = None
        usable = pool.blocks[: book.usable_blocks]
        super().__init__([block for block in usable if not block.is_null])
        self.book, self._pool, self._below = book, pool, below or NothingBelow()
        self.blocks_again = 0
        """Number of times since the start that a request took a cached block, which no request used
        then, for its content."""
        self.pinned: dict[int, Any] = {}
        """Blocks that a copy reads, by number."""
        pool.free_block_queue = self
        self._size_pool()

    def _size_pool(self) -> None:
        """Set `num_gpu_blocks` to the blocks that are free or in use, since the pool compares free
        blocks with it."""
        book = self.book
        self._pool.num_gpu_blocks = max(1, book.usable_blocks + book.retiring_blocks)

    # -- vLLM's pool calls these ----------------------------------------------------------

    def popleft_n(self, n: int) -> list[Any]:
        """Override vLLM's: take `n` free blocks for a request. Beyond vLLM's, tell the tier below
        of cached content that is lost on the device, and note the blocks as used in the book."""
        given: list[Any] = super().popleft_n(n)
        for block in given:
            if block.block_hash is not None:
                self._below.evicting(block)
        self.book.take([block.block_id for block in given])
        return given

    def remove(self, block: Any) -> None:
        """Override vLLM's: take a cached block out of the queue, because a request uses its content
        again. Beyond vLLM's, note it as used in the book, and count it in `blocks_again`."""
        self._take(block)
        self.blocks_again += 1

    def prepend_n(self, blocks: list[Any]) -> None:
        """Override vLLM's: put freed blocks at the head of the queue, to be given first. Beyond
        vLLM's, note them as free in the book; blocks of retiring extents are not put back."""
        super().prepend_n(self._given_back(blocks))

    def append_n(self, blocks: list[Any]) -> None:
        """Override vLLM's: put freed blocks at the end of the queue, to be given last. Beyond
        vLLM's, note them as free in the book; blocks of retiring extents are not put back."""
        super().append_n(self._given_back(blocks))

    def _given_back(self, blocks: list[Any]) -> list[Any]:
        """Note `blocks` as free in the book, and return those that may be given again; those of a
        retiring extent are dropped from the prefix cache."""
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
        """Return the blocks of one extent."""
        numbers = self.book.blocks_of(extent)
        return self._pool.blocks[numbers.start : numbers.stop]

    def add(self, extents: Sequence[int]) -> None:
        """Note that memory has been mapped under these extents: their blocks are given before
        cached ones."""
        self.book.add(extents)
        super().prepend_n([block for extent in extents for block in self.blocks_of(extent)])
        self._size_pool()

    def call_back(self, count: int) -> int:
        """Make up to `count` retiring extents usable again; return their number."""
        back = self.book.call_back(count)
        for extent in back:
            super().prepend_n([block for block in self.blocks_of(extent) if not block.ref_cnt])
        self._size_pool()
        return len(back)

    def to_retire(self, count: int) -> list[int]:
        """Return up to `count` extents to hand back: those with the fewest blocks in use, then with
        the fewest cached blocks that have no copy below, then with the fewest cached blocks, then
        the highest."""
        return self.book.to_retire(count, self._loss)

    def _loss(self, extent: int) -> tuple[int, int]:
        cached = [block for block in self.blocks_of(extent) if block.block_hash is not None]
        return sum(not self._below.has_copy(block) for block in cached), len(cached)

    def retire(self, extents: Sequence[int]) -> None:
        """Retire these extents: none of their blocks is given any more, and their cached prefixes
        are dropped."""
        self.book.retire(extents)
        for extent in extents:
            self._pool.evict_blocks(set(self.book.blocks_of(extent)))
            for block in self.blocks_of(extent):
                if not block.ref_cnt:
                    super().remove(block)
        self._size_pool()

    # -- cached blocks ----------------------------------------------------------------------

    def idle_cached_blocks(self) -> int:
        """Return the approximate number of cached blocks without a request: blocks in use are
        counted as cached.

        An exact count would look at every block for each report.
        """
        used = self.book.usable_blocks - 1 - self.num_free_blocks
        return max(0, len(self._pool.cached_block_hash_to_block) - max(0, used))

    def is_cached(self, key: Any) -> bool:
        """True if a cached block has the content that `key`, a hash with its group, names."""
        return self._pool.cached_block_hash_to_block.get_one_block(key) is not None

    def forget(self, blocks: Iterable[Any]) -> None:
        """Remove from the prefix cache the blocks among `blocks` that exactly one request uses.
        Copies that read a block do not count as requests."""
        self._pool.evict_blocks(
            {
                block.block_id
                for block in blocks
                if block.ref_cnt - (block.block_id in self.pinned) == 1 and not block.is_null
            }
        )

    # -- copies that read blocks ------------------------------------------------------------

    def pin(self, blocks: Iterable[Any]) -> None:
        """Note that a copy to the tier below begins to read these blocks; they count as in use.

        The copy adds a reference to each block, as copies of vLLM's own offloading do, so that the
        block keeps its content: vLLM gives only blocks without a reference to requests for new
        content, and rewrites a block only for the holder of its only reference.
        """
        for block in blocks:
            if not block.ref_cnt:
                self._take(block)
            block.ref_cnt += 1
            self.pinned[block.block_id] = block

    def unpin(self, blocks: Sequence[Any]) -> None:
        """Note that the copy of these blocks has ended. Those without another user are given first,
        because their content is kept below."""
        for block in blocks:
            del self.pinned[block.block_id]
            block.ref_cnt -= 1
        self.prepend_n([block for block in blocks if not block.ref_cnt])

    def only_pinned(self) -> int:
        """Return the number of blocks that copies read and no request uses, which will soon be
        free."""
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
