"""Blocks that a running request lacks are counted as vLLM counts them when it has none."""

from __future__ import annotations

import random
from typing import Any

import pytest
import tiny  # noqa: F401  (sets vLLM's environment before it is imported)
import torch
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus

from mirage.engine.growth_holding import HoldingKVCacheManager

pytestmark = pytest.mark.engine

BLOCKS, TOKENS, LENGTH = 40, 16, 512
SHAPE = {"block_size": TOKENS, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
GROUPS = {
    "full": [FullAttentionSpec(**SHAPE)],
    "window": [FullAttentionSpec(**SHAPE), SlidingWindowSpec(**SHAPE, sliding_window=64)],
}


def manager_of(specs: list[Any]) -> Any:
    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]
    config = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)
    made: Any = KVCacheManager(config, LENGTH, scheduler_block_size=TOKENS, hash_block_size=TOKENS)
    HoldingKVCacheManager.of(made, Told())  # type: ignore[arg-type]
    return made


class Told:
    """Stand-in for `StepHold`, which never recalls and records the missing blocks."""

    def __init__(self) -> None:
        self.recalled = False
        self.lacked: list[int] = []
        self.free: list[int] = []

    def recalls(self) -> bool:
        return self.recalled

    def copied(self) -> bool:
        return False

    def stuck(self, request: Any) -> bool:
        return False

    def lacks(self, blocks: int, free: int) -> None:
        self.lacked.append(blocks)
        self.free.append(free)


class Counts:
    """Numbers of blocks that vLLM's coordinator counted, and numbers reported as missing."""

    def __init__(self, manager: Any) -> None:
        self.counted: list[int] = []
        self.told: list[int] = manager.hold.lacked
        self._count = manager.coordinator.get_num_blocks_to_allocate
        manager.coordinator.get_num_blocks_to_allocate = self._noting

    def _noting(self, *args: Any, **kwargs: Any) -> int:
        self.counted.append(self._count(*args, **kwargs))
        return self.counted[-1]


def request_of(number: int) -> Any:
    """Request with the longest possible prompt, which is computed in chunks."""
    params = SamplingParams(max_tokens=1, temperature=0)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(TOKENS, sha256)
    return Request(str(number), [number] * LENGTH, params, None, block_hasher=hasher)


def starts(manager: Any, request: Any, tokens: int) -> bool:
    if manager.allocate_slots(request, tokens) is None:
        return False
    request.status, request.num_computed_tokens = RequestStatus.RUNNING, tokens
    return True


@pytest.mark.parametrize("watermark", [0, 3])
@pytest.mark.parametrize("lookahead", [0, 4])
@pytest.mark.parametrize("groups", GROUPS)
def test_it_is_told_what_vllm_counted(groups: str, lookahead: int, watermark: int) -> None:
    rng, manager = random.Random(watermark + lookahead), manager_of(GROUPS[groups])
    counts, running = Counts(manager), []
    manager.watermark_blocks = watermark
    failures = 0
    for number in range(200):
        request = request_of(number)
        if rng.random() < 0.3 and starts(manager, request, rng.randrange(1, 200)):
            running.append(request)
        assert not counts.told, "nobody holds a request that does not run"
        for each in list(running):
            tokens = min(rng.randrange(1, 60), LENGTH - each.num_computed_tokens)
            counts.counted.clear()
            got = tokens and manager.allocate_slots(each, tokens, num_lookahead_tokens=lookahead)
            if got:
                each.num_computed_tokens += tokens
            if got is None:
                theirs, ours = counts.counted
                free = manager.block_pool.get_num_free_blocks()
                assert theirs == ours > free == manager.hold.free[-1]
                assert counts.told == [theirs - free], "what newcomers leave free is for it"
                counts.told.clear()
                failures += 1
            if got is None or not tokens:
                running.remove(each)
                manager.free(each)
    assert failures > 10


def test_nothing_is_asked_for_while_memory_is_called_back() -> None:
    manager = manager_of(GROUPS["full"])
    counts, request = Counts(manager), request_of(1)
    assert starts(manager, request, 20)
    manager.hold.recalled = True
    assert manager.allocate_slots(request, 20) is None and not counts.told
    manager.hold.recalled = False
    assert manager.allocate_slots(request, 20) is not None
