"""vLLM's block pool over elastic blocks: a block without memory is never handed out."""

from __future__ import annotations

from typing import Any

import pytest
import tiny  # noqa: F401  (sets vLLM's environment before it is imported)
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from mirage.control.engine.extent_book import Extent, ExtentBook
from mirage.engine.blockpool import ElasticBlocks, NothingBelow
from tests.examples import examples

pytestmark = pytest.mark.engine

EXTENTS, START = 12, 6


class PoolMachine(RuleBasedStateMachine):
    """Random requests, while extents are mapped, retired, called back and unmapped."""

    extent_blocks = 1

    def __init__(self) -> None:
        super().__init__()
        universe = EXTENTS * self.extent_blocks
        self.pool = BlockPool(universe, enable_caching=True, hash_block_size=16)
        self.book = ExtentBook(EXTENTS, self.extent_blocks, START)
        self.blocks = ElasticBlocks(self.pool, self.book)
        self.mapped = set(range(START))
        self.held: list[list] = []
        self.read: list[list] = []

    @rule(count=st.integers(1, 6))
    def allocate(self, count: int) -> None:
        if count <= self.pool.get_num_free_blocks():
            blocks = self.pool.get_new_blocks(count)
            assert all(b.block_id // self.extent_blocks in self.mapped for b in blocks)
            self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 100), share=st.booleans())
    def touch_or_free(self, which: int, share: bool) -> None:
        blocks = self.held[which % len(self.held)]
        if share:
            self.pool.touch(blocks)
            self.held.append(list(blocks))
        else:
            self.held.remove(blocks)
            self.pool.free_blocks(reversed(blocks))

    @rule(count=st.integers(1, 4))
    def grow(self, count: int) -> None:
        extents = self.book.unmapped(count)
        self.mapped |= set(extents)
        self.blocks.add(extents)

    @rule(count=st.integers(1, 4))
    def retire(self, count: int) -> None:
        picked = self.blocks.to_retire(count)
        assert 0 not in picked
        self.blocks.retire(picked)

    @rule(count=st.integers(1, 4))
    def call_back(self, count: int) -> None:
        self.blocks.call_back(count)

    @rule()
    def drop(self) -> None:
        emptied = self.book.emptied()
        self.book.drop(emptied)
        self.mapped -= set(emptied)
        assert not self.in_use() & set(emptied)

    @rule(first=st.integers(0, EXTENTS * 4), count=st.integers(1, 4))
    def read_by_a_copy(self, first: int, count: int) -> None:
        """Mark blocks as being read by a copy: blocks of requests, and free blocks with cached
        content.
        """
        blocks = [b for b in self.pool.blocks[1:][first : first + count] if self.may_be_read(b)]
        self.blocks.pin(blocks)
        self.read.append(blocks)

    def may_be_read(self, block: Any) -> bool:
        usable = self.book.state[block.block_id // self.extent_blocks] is Extent.USABLE
        return block.block_id not in self.blocks.pinned and (block.ref_cnt > 0 or usable)

    @precondition(lambda self: self.read)
    @rule(which=st.integers(0, 100))
    def end_of_a_copy(self, which: int) -> None:
        self.blocks.unpin(self.read.pop(which % len(self.read)))

    def in_use(self) -> set[int]:
        held = (block for blocks in self.held + self.read for block in blocks)
        return {block.block_id // self.extent_blocks for block in held}

    @invariant()
    def sound(self) -> None:
        self.blocks.check_integrity()
        backed = {e for e, state in enumerate(self.book.state) if state is not Extent.UNMAPPED}
        assert backed == self.mapped
        in_use = self.in_use()
        assert self.book.busy_extents() == (len(in_use | {0}) if in_use else 0)
        assert 0.0 <= self.pool.get_usage() <= 1.0

    @rule()
    def reset_prefix_cache(self) -> None:
        assert self.pool.reset_prefix_cache() == (not self.in_use())


class WidePoolMachine(PoolMachine):
    extent_blocks = 4


LIMITS = examples(60, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])
TestSingleBlockExtents = PoolMachine.TestCase
TestSingleBlockExtents.settings = LIMITS
TestWideExtents = WidePoolMachine.TestCase
TestWideExtents.settings = LIMITS


@pytest.mark.parametrize("read", [False, True])
def test_what_is_forgotten_is_found_by_nobody_also_while_a_copy_reads_it(read: bool) -> None:
    """Two blocks are forgotten, perhaps while a copy reads them. The one of a single request is not
    found in the cache any more; the shared one still is.
    """
    pool = BlockPool(EXTENTS, enable_caching=True, hash_block_size=16)
    blocks = ElasticBlocks(pool, ExtentBook(EXTENTS, 1, START))
    mine, shared = pool.get_new_blocks(2)
    names = [make_block_hash_with_group_id(bytes([b.block_id]), 0) for b in (mine, shared)]
    for block, name in zip((mine, shared), names, strict=True):
        block.set_block_hash(name, 16)
        pool.cached_block_hash_to_block.insert(name, block)
    pool.touch([shared])
    if read:
        blocks.pin([mine, shared])
    blocks.forget([mine, shared])
    if read:
        blocks.unpin([mine, shared])
    assert list(map(pool.cached_block_hash_to_block.get_one_block, names)) == [None, shared]
    assert list(map(blocks.is_cached, names)) == [False, True]


class Below(NothingBelow):
    """Stand-in for a tier that has copies of some blocks, by number; it records evicted ones."""

    def __init__(self, *copies: int) -> None:
        self.copies, self.lost = copies, list[tuple[int, Any]]()

    def has_copy(self, block: Any) -> bool:
        return block.block_id in self.copies

    def evicting(self, block: Any) -> None:
        self.lost.append((block.block_id, block.block_hash))


def cached(pool: BlockPool, number: int) -> Any:
    """Put block `number` into the cache under a name, which is returned."""
    name = make_block_hash_with_group_id(bytes([number]), 0)
    block = pool.blocks[number]
    block.set_block_hash(name, 16)
    pool.cached_block_hash_to_block.insert(name, block)
    return name


def test_what_is_given_is_told_before_it_forgets_and_what_retires_is_not() -> None:
    pool = BlockPool(EXTENTS, enable_caching=True, hash_block_size=16)
    below = Below()
    blocks = ElasticBlocks(pool, ExtentBook(EXTENTS, 1, START), below)
    names = {number: cached(pool, number) for number in (2, 3)}
    blocks.retire([3])
    pool.get_new_blocks(2)
    assert below.lost == [(2, names[2])]
    assert not any(map(blocks.is_cached, names.values()))


def test_a_cached_block_that_a_request_takes_again_is_counted_once() -> None:
    pool = BlockPool(EXTENTS, enable_caching=True, hash_block_size=16)
    blocks = ElasticBlocks(pool, ExtentBook(EXTENTS, 1, START))
    cached(pool, 2)
    blocks.pin([pool.blocks[2]])
    blocks.unpin([pool.blocks[2]])
    assert blocks.blocks_again == 0, "a copy is no request"
    for _ in range(2):  # two requests at once
        pool.touch([pool.blocks[2]])
    assert blocks.blocks_again == 1


def test_a_pool_without_memory_has_vllms_null_block_alone() -> None:
    pool = BlockPool(1, enable_caching=True, hash_block_size=16)
    blocks = ElasticBlocks(pool, ExtentBook(0, 1, 0))
    blocks.check_integrity()
    assert pool.get_num_free_blocks() == 0 and pool.get_usage() == 0.0


def test_extents_whose_blocks_have_copies_retire_before_others() -> None:
    pool = BlockPool(EXTENTS, enable_caching=True, hash_block_size=16)
    blocks = ElasticBlocks(pool, ExtentBook(EXTENTS, 1, START), Below(2, 3))
    for number in (2, 3, 4, 5):  # extent 1 has nothing to lose
        cached(pool, number)
    assert blocks.to_retire(5) == [1, 3, 2, 5, 4]
    (used,) = pool.get_new_blocks(1)  # whose KV a request needs: it would not leave
    assert blocks.to_retire(5)[-1] == used.block_id
