"""Sizes of a model in device memory: bytes of an allotment, and the least of its KV cache.

Each formula stands here once; engines, `mirage check` and the simulator use the same. The number of
KV blocks in an extent is `vmm.space.extent_blocks`.
"""

from __future__ import annotations

from mirage.protocol import ModelShape
from mirage.units import ceil_div


def footprint(shape: ModelShape, remapped: int, kv_extents: int, experts: int = 0) -> int:
    """Bytes of device memory of an engine that gives away `remapped` layers, or `experts` of each
    layer.

    That includes slots, each the size of one layer, and the spare frames that all layers share, one
    for each expert that a layer gives.
    """
    layers = (shape.layers - remapped) * shape.layer_bytes
    if experts:
        layers -= experts * experts_gain(shape)
    return shape.fixed_bytes + layers + kv_extents * shape.extent_bytes


def asleep_bytes(shape: ModelShape) -> int:
    """Bytes of device memory of an engine that is asleep, which are those that never leave it.

    It holds no layer if layers can move, and of its KV cache the extent with vLLM's null block.
    """
    return footprint(shape, shape.movable_layers, min(1, shape.max_extents))


def experts_gain(shape: ModelShape) -> int:
    """Bytes freed by giving one expert of each layer away, less the spare frame that takes its
    place.
    """
    return max(0, shape.expert_layers - 1) * shape.expert_bytes


def block_bytes(shape: ModelShape) -> float:
    """Bytes of a KV block, including its part of the padding of an extent to whole pages."""
    return shape.extent_bytes / shape.extent_blocks


def token_bytes(shape: ModelShape) -> float:
    """Bytes of KV memory that a token of a full block takes."""
    return block_bytes(shape) / shape.block_tokens


def gained_extents(shape: ModelShape, remapped: int) -> int:
    """Number of KV extents that fit into the memory of `remapped` layers of the same model."""
    return remapped * shape.layer_bytes // shape.extent_bytes


def least_blocks(request_blocks: int) -> int:
    """KV blocks for one request of the greatest length; 0 for a model without a KV cache.

    One of them is vLLM's null block, which no request gets.
    """
    return request_blocks + 1 if request_blocks else 0


def least_extents(request_blocks: int, extent_blocks: int) -> int:
    """KV extents for one request of the greatest length, which takes `request_blocks`."""
    return ceil_div(least_blocks(request_blocks), extent_blocks)
