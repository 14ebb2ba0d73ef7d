"""KV groups of a model, as vLLM's own specs describe them."""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_cache_interface import (
    KVCacheSpecKind,
    UniformTypeKVCacheSpecs,
    get_kv_cache_spec_kind,
)

from mirage.facts import KVGroup, KVGroups
from mirage.units import ceil_div

HELD_WHOLE = {KVCacheSpecKind.MAMBA, KVCacheSpecKind.CROSS_ATTENTION, KVCacheSpecKind.UNKNOWN}
"""Kinds of layers for which a request holds all its blocks from its first step on."""


def kv_groups(vllm_config: Any, groups: Any) -> KVGroups:
    """Return our KV groups for vLLM's list of KVCacheGroupSpec."""
    return KVGroups(tuple(_group(vllm_config, group) for group in groups))


def _group(vllm_config: Any, group: Any) -> KVGroup:
    spec = group.kv_cache_spec
    kind = get_kv_cache_spec_kind(spec)
    return KVGroup(
        kind=kind.value,
        layers=len(group.layer_names),
        block_tokens=spec.block_size,
        most_blocks=_most_blocks(vllm_config, spec),
        grows=kind not in HELD_WHOLE,
    )


def _most_blocks(vllm_config: Any, spec: Any) -> int:
    """Return the number of blocks that vLLM expects one request of `max_model_len` tokens to
    hold."""
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return int(spec.max_memory_usage_pages(vllm_config))
    return ceil_div(int(spec.max_memory_usage_bytes(vllm_config)), spec.page_size_bytes)
