"""KV buffer in a reserved range: vLLM's one allocation is served from our addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mirage.units import align_up
from vmm.driver import Driver
from vmm.pages import PagePool
from vmm.space import ExtentMap, Range, extent_blocks


class KVAllocation(TorchFunctionMode):
    """Torch function mode that answers the one ``torch.zeros(size, int8)`` of vLLM's
    `allocate_kv_cache` with our tensor."""

    def __init__(self, nbytes: int, make: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.nbytes, self.make, self.served = nbytes, make, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        wanted = func is torch.zeros and kwargs.get("dtype") is torch.int8
        if wanted and args and args[0] == self.nbytes:
            self.served += 1
            return self.make()
        return func(*args, **kwargs)


class KVBuffer:
    """Range of all KV blocks, its extents, and the tensor that vLLM divides.

    `config` is vLLM's KVCacheConfig, whose `num_blocks` is the largest number of blocks that could
    ever be mapped.
    """

    def __init__(self, config: Any, driver: Driver, pool: PagePool) -> None:
        self.nbytes: int = config.kv_cache_tensors[0].size
        regions, block_bytes = _regions(config)
        per_extent = extent_blocks(block_bytes, driver.page_bytes)
        page = driver.page_bytes
        self.range = Range(driver, align_up(self.nbytes, page))
        usable = config.num_blocks // per_extent * per_extent
        self.extents = ExtentMap(self.range, pool, regions, block_bytes, usable)
        self.regions, self.block_bytes = regions, block_bytes
        """Offset of each contiguous run of blocks, and the bytes of one block in it."""

    def tensor(self) -> torch.Tensor:
        """Return the whole buffer, int8; only mapped extents may be touched."""
        return self.range.tensor(0, self.nbytes).view(torch.int8)


def block_geometry(config: Any) -> tuple[int, int]:
    """Return the bytes of one KV block of vLLM's KVCacheConfig over all layers, and its number of
    contiguous runs."""
    regions, block_bytes = _regions(config)
    return block_bytes * len(regions), len(regions)


def counted_extent(config: Any, page_bytes: int) -> tuple[int, int]:
    """Return the number and bytes of the fewest KV blocks that fill whole pages, if a block's parts
    in all layers are counted as one piece."""
    whole, _ = block_geometry(config)
    blocks = extent_blocks(whole, page_bytes)
    return blocks, blocks * whole


def _regions(config: Any) -> tuple[list[int], int]:
    """Return the offset of each contiguous run of blocks, and the bytes of one block in it.

    Raise `ValueError` for layouts whose runs differ in block size.
    """
    offsets: set[int] = set()
    strides: set[int] = set()
    for tensor in config.kv_cache_tensors:
        strides.add(tensor.block_stride)
        if tensor.block_stride > tensor.layer_stride:
            offsets.add(0)
        else:
            offsets.update(
                tensor.offset + i * tensor.layer_stride for i in range(len(tensor.layers))
            )
    if len(strides) != 1:
        raise ValueError(f"KV blocks of several sizes ({sorted(strides)} bytes) are not supported")
    return sorted(offsets), strides.pop()
