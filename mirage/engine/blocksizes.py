"""KV block sizes that vLLM's attention can read, chosen as its model runner does at start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.kv_cache_interface import AttentionSpec
from vllm.v1.worker.utils import (
    AttentionGroup,
    prepare_kernel_block_sizes,
    select_common_block_size,
)

SEARCHED = 1 << 12
"""Number of block sizes, from the refused one upwards, among which the refusal looks for one that
attention can read. No backend needs a multiple of a larger number."""


def unread(config: Any, plan: Any) -> str | None:
    """Return the reason why attention cannot read the KV blocks of vLLM's KVCacheConfig `plan`;
    None if it can.

    An engine whose KV blocks cannot be read would end at its start.
    """
    return next(_problems(config, plan), None)


def _problems(config: Any, plan: Any) -> Iterator[str]:
    for group in plan.kv_cache_groups:
        readers = _readers(config, group)
        try:
            _settle(replace(plan, kv_cache_groups=[group]), readers)
        except ValueError:
            yield _refusal(group.kv_cache_spec.block_size, readers)


def _readers(config: Any, group: Any) -> list[AttentionGroup]:
    """Return the attention backend and KV cache spec of each layer in `group`, as attention groups
    of one layer each."""
    layers = get_layers_from_vllm_config(config, AttentionLayerBase, group.layer_names)
    specs = getattr(group.kv_cache_spec, "kv_cache_specs", {})
    return [
        AttentionGroup(layer.get_attn_backend(), [name], specs.get(name, group.kv_cache_spec), 0)
        for name, layer in layers.items()
    ]


def _settle(plan: Any, readers: list[AttentionGroup]) -> None:
    """Let vLLM choose block sizes for all layers, then for each backend, as at an engine's start.
    Raise `ValueError` if no size can be read."""
    for size in prepare_kernel_block_sizes(plan, [readers]):
        for reader in readers:
            if isinstance(reader.kv_cache_spec, AttentionSpec):
                _common(size, [reader])


def _common(size: int, readers: list[AttentionGroup]) -> int:
    backends, specs = [r.backend for r in readers], [r.kv_cache_spec for r in readers]
    return select_common_block_size(size, backends, specs)


def _refusal(size: int, readers: list[AttentionGroup]) -> str:
    fitting = next((n for n in range(size, size + SEARCHED) if _can_read(n, readers)), None)
    advice = f"write {fitting}" if fitting else "choose another engine_args.attention_backend"
    kinds = {r.backend.get_name(): r for r in readers}.values()
    return f"block_tokens: {' and '.join(map(_words, kinds))}, not of {size}: {advice}"


def _can_read(size: int, readers: list[AttentionGroup]) -> bool:
    try:
        _common(size, readers)
    except ValueError:
        return False
    return True


def _words(reader: AttentionGroup) -> str:
    """Return a sentence such as ``"vLLM's CPU_ATTN reads KV blocks of a multiple of 32 tokens"``.

    A kernel's own size stands for its multiples, since vLLM divides larger blocks into blocks of
    that size.
    """
    sizes = reader.backend.get_supported_kernel_block_sizes(reader.kv_cache_spec)
    bases = [str(size.base if isinstance(size, MultipleOf) else size) for size in sizes]
    name = reader.backend.get_name()
    return f"vLLM's {name} reads KV blocks of a multiple of {' or '.join(bases)} tokens"
