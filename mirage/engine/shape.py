"""Shape of one engine's memory, as it introduces itself to the control server."""

from __future__ import annotations

from typing import Any

from mirage.engine.device_memory import DeviceMemory
from mirage.engine.kvbuffer import counted_extent
from mirage.facts import KVGroups
from mirage.geometry import least_extents
from mirage.protocol import ModelShape


def model_shape(memory: DeviceMemory, config: Any, kv: KVGroups) -> ModelShape:
    """Return the shape of an engine's memory: how many layers and at most how many KV extents it
    has; the bytes of one layer, one expert and one extent; and how many layers, and experts of each
    layer, can be given away. `config` is vLLM's KVCacheConfig."""
    blocks, nbytes = _extent_geometry(memory, config)
    return ModelShape(
        layers=memory.layers,
        layer_bytes=memory.layer_bytes,
        fixed_bytes=memory.fixed_bytes,
        extent_bytes=nbytes,
        extent_blocks=blocks,
        block_tokens=min((group.block_tokens for group in kv.groups), default=1),
        max_extents=config.num_blocks // blocks if kv.groups else 0,
        min_extents=least_extents(kv.request_blocks, blocks),
        movable_layers=memory.layers if memory.streamer else 0,
        **_expert_shape(memory),
    )


def _expert_shape(memory: DeviceMemory) -> dict[str, int]:
    if memory.giver is None:
        return {}
    layout = memory.giver.layout
    return {
        "movable_experts": layout.most,
        "expert_layers": len(layout.layers),
        "expert_bytes": layout.nbytes,
    }


def _extent_geometry(memory: DeviceMemory, config: Any) -> tuple[int, int]:
    """Return the blocks and the bytes of one extent. For a static engine extents are only a unit of
    counting."""
    if memory.kv is not None:
        return memory.kv.extents.blocks_per_extent, memory.kv.extents.extent_bytes
    if not config.kv_cache_tensors:
        return 1, memory.settings.page
    return counted_extent(config, memory.settings.page)
