"""The elastic block pool over vLLM's own: no block without memory is ever handed out."""

from __future__ import annotations

import pytest
import tiny  # noqa: F401  (sets vLLM's environment before it is imported)
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from mirage.engine.blockpool import ElasticBlockPool, Extent
from tests.examples import examples

pytestmark = pytest.mark.engine

EXTENTS, START = 12, 6


class PoolMachine(RuleBasedStateMachine):
    """Requests come and go while extents are mapped, retired, called back and dropped."""

    extent_blocks = 1

    def __init__(self) -> None:
        super().__init__()
        universe = EXTENTS * self.extent_blocks
        self.pool = BlockPool(universe, enable_caching=True, hash_block_size=16)
        self.pool.__class__ = ElasticBlockPool
        self.pool.become_elastic(self.extent_blocks, START)
        self.mapped = set(range(START))
        self.held: list[list] = []

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
        extents = self.pool.unmapped(count)
        self.mapped |= set(extents)
        self.pool.add(extents)

    @rule(count=st.integers(1, 4))
    def retire(self, count: int) -> None:
        picked = self.pool.pick_retirees(count)
        assert 0 not in picked
        self.pool.retire(picked)

    @rule(count=st.integers(1, 4))
    def call_back(self, count: int) -> None:
        self.pool.unretire(count)

    @rule()
    def drop(self) -> None:
        emptied = self.pool.emptied()
        self.pool.drop(emptied)
        self.mapped -= set(emptied)
        in_use = {b.block_id // self.extent_blocks for blocks in self.held for b in blocks}
        assert not in_use & set(emptied)

    @invariant()
    def sound(self) -> None:
        self.pool.check_integrity()
        backed = {e for e, state in enumerate(self.pool.state) if state is not Extent.UNMAPPED}
        assert backed == self.mapped
        assert self.pool.backed_extents() == len(backed)
        in_use = {b.block_id // self.extent_blocks for blocks in self.held for b in blocks}
        assert self.pool.busy_extents() == (len(in_use | {0}) if in_use else 0)
        assert 0.0 <= self.pool.get_usage() <= 1.0

    @precondition(lambda self: not self.held)
    @rule()
    def reset_prefix_cache(self) -> None:
        assert self.pool.reset_prefix_cache()


class WidePoolMachine(PoolMachine):
    extent_blocks = 4


LIMITS = examples(60, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])
TestSingleBlockExtents = PoolMachine.TestCase
TestSingleBlockExtents.settings = LIMITS
TestWideExtents = WidePoolMachine.TestCase
TestWideExtents.settings = LIMITS


@pytest.mark.parametrize("read", [False, True])
def test_what_is_forgotten_is_found_by_nobody_also_while_a_copy_reads_it(read: bool) -> None:
    """A block that a request was given while its old content is still being copied."""
    pool = BlockPool(EXTENTS, enable_caching=True, hash_block_size=16)
    pool.__class__ = ElasticBlockPool
    pool.become_elastic(1, START)
    mine, shared = pool.get_new_blocks(2)
    names = [make_block_hash_with_group_id(bytes([b.block_id]), 0) for b in (mine, shared)]
    for block, name in zip((mine, shared), names, strict=True):
        block.set_block_hash(name, 16)
        pool.cached_block_hash_to_block.insert(name, block)
    pool.touch([shared])
    if read:
        pool.pin([mine, shared])
    pool.forget([mine, shared])
    if read:
        pool.unpin([mine, shared])
    assert list(map(pool.cached_block_hash_to_block.get_one_block, names)) == [None, shared]


def test_extents_whose_blocks_have_copies_retire_before_others() -> None:
    pool = BlockPool(EXTENTS, enable_caching=True, hash_block_size=16)
    pool.__class__ = ElasticBlockPool
    pool.become_elastic(1, START)
    for number in (2, 3, 4, 5):  # extent 1 has nothing to lose
        pool.blocks[number].set_block_hash(make_block_hash_with_group_id(bytes([number]), 0), 16)
    pool.has_copy = lambda block: block.block_id in (2, 3)
    assert pool.pick_retirees(5) == [1, 3, 2, 5, 4]
    (used,) = pool.get_new_blocks(1)  # whose KV a request needs: it would not leave
    assert pool.pick_retirees(5)[-1] == used.block_id
