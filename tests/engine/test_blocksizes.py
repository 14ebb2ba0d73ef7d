"""Sizes of KV blocks that attention backends can read, also those of GPUs and several at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
)

from mirage.engine.blocksizes import unread

pytestmark = pytest.mark.engine

Sizes = list[int | MultipleOf]
FLASH, FLASHINFER, FLASHMLA, ODD = [MultipleOf(16)], [16, 32, 64], [64], [48]
NAMES = {
    id(FLASH): "FLASH_ATTN",
    id(FLASHINFER): "FLASHINFER",
    id(FLASHMLA): "FLASHMLA",
    id(ODD): "ODD",
}


class Layer(AttentionLayerBase):
    """A layer whose backend reads blocks of `sizes` tokens."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def get_attn_backend(self) -> Any:
        return SimpleNamespace(
            get_name=lambda: NAMES[id(self.sizes)],
            get_supported_kernel_block_sizes=lambda spec=None: self.sizes,
        )

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        raise NotImplementedError


def problem(block: int, *groups: list[Sizes], packed: bool = False) -> str | None:
    """Refusal of groups of layers with blocks of `block` tokens; None if all can be read."""
    layers = {f"{g}.{n}": Layer(s) for g, group in enumerate(groups) for n, s in enumerate(group)}
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=64, dtype=torch.float16)
    names = [[f"{g}.{n}" for n, _ in enumerate(group)] for g, group in enumerate(groups)]
    strides = (1, 2) if packed else (2, 1)
    tensors = [KVCacheTensor(1 << 20, each, *strides) for each in names]
    specs = [KVCacheGroupSpec(each, spec) for each in names]
    return unread(config, KVCacheConfig(8, tensors, specs))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("block", "sizes"),
    [(16, FLASH), (48, FLASH), (16, FLASHINFER), (48, FLASHINFER), (64, FLASHMLA), (128, FLASHMLA)],
)
def test_blocks_that_one_backend_reads_whole_or_in_parts(
    block: int, sizes: Sizes, packed: bool
) -> None:
    assert problem(block, [sizes, sizes], packed=packed) is None


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("block", "sizes", "words"),
    [
        (8, FLASH, "FLASH_ATTN reads KV blocks of a multiple of 16 tokens, not of 8: write 16"),
        (
            40,
            FLASHINFER,
            "FLASHINFER reads KV blocks of a multiple of 16 or 32 or 64 tokens, not of 40: "
            "write 48",
        ),
        (16, FLASHMLA, "FLASHMLA reads KV blocks of a multiple of 64 tokens, not of 16: write 64"),
        (96, FLASHMLA, "FLASHMLA reads KV blocks of a multiple of 64 tokens, not of 96: write 128"),
    ],
)
def test_blocks_that_none_reads_are_told_with_the_next_larger_size(
    block: int, sizes: Sizes, words: str, packed: bool
) -> None:
    assert problem(block, [sizes], packed=packed) == f"block_tokens: vLLM's {words}"


def test_each_group_is_asked_and_all_backends_of_a_group() -> None:
    assert problem(64, [FLASH], [FLASHMLA]) is None
    assert problem(32, [FLASH], [FLASHMLA]) == (
        "block_tokens: vLLM's FLASHMLA reads KV blocks of a multiple of 64 tokens, "
        "not of 32: write 64"
    )
    assert problem(32, [FLASH, FLASHMLA]) == (
        "block_tokens: vLLM's FLASH_ATTN reads KV blocks of a multiple of 16 tokens and vLLM's "
        "FLASHMLA reads KV blocks of a multiple of 64 tokens, not of 32: write 64"
    )


def test_where_no_size_is_read_by_all_another_backend_is_advised() -> None:
    words = problem(64, [FLASHMLA, ODD])
    assert words is not None
    assert words.endswith("not of 64: choose another engine_args.attention_backend")


def test_a_state_is_no_matter_of_tokens() -> None:
    layers = {"a": Layer(FLASHMLA)}
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    spec = MambaSpec(block_size=7, shapes=((4,),), dtypes=(torch.float32,))
    plan = KVCacheConfig(8, [KVCacheTensor(1 << 20, ["a"], 2, 1)], [KVCacheGroupSpec(["a"], spec)])
    assert unread(config, plan) is None
