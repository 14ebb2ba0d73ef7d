"""Rows of block tables that name no block but a request's own.

The second model runner copies as many block ids into a step's row as the request has. Ids of an
earlier, longer request in that row stay. And neither runner is told of blocks that are freed behind
a sliding window: rows name them until the request ends. In plain vLLM all of the KV cache is
memory, so a kernel may load a tile beyond an end and mask it. Here such a block may have been given
away, and reading it is an illegal address. Block 0, the null block, always has memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MLAAttentionSpec,
    UniformTypeKVCacheSpecs,
)

KEEPS_ALL = (FullAttentionSpec, MLAAttentionSpec)
"""Specs of layers whose requests keep all of their blocks until they end."""


def zero_tails(runner: Any) -> bool:
    """Make vLLM's second model runner clear the rows of a step before it copies block ids into
    them; False if `runner` is the first one, which clears rows itself."""
    tables = getattr(runner, "block_tables", None)
    if tables is None or not hasattr(tables, "gather_block_tables"):
        return False
    gather = tables.gather_block_tables

    def gathered(
        idx_mapping: torch.Tensor,
        num_reqs_padded: int,
        out: tuple[torch.Tensor, ...] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, ...]:
        # On the stream that the copy is enqueued on, so before it.
        for rows in tables.input_block_tables if out is None else out:
            rows[:num_reqs_padded].zero_()
        made: tuple[torch.Tensor, ...] = gather(idx_mapping, num_reqs_padded, out, *args, **kwargs)
        return made

    tables.gather_block_tables = gathered
    return True


def letting_go(kv_cache_config: Any) -> list[int]:
    """Return the numbers of the KV groups whose requests may free blocks before they end, such as
    those of sliding windows."""
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return [number for number, spec in enumerate(specs) if not _keeps_all(spec)]


def _keeps_all(spec: Any) -> bool:
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return all(map(_keeps_all, spec.kv_cache_specs.values()))
    return type(spec) in KEEPS_ALL


def forget(runner: Any, groups: Sequence[int], blocks: Collection[int]) -> None:
    """Replace `blocks`, which no request has, by the null block in rows of these KV groups.

    Call it only before a step tells the runner of new blocks, because the step may give some of
    `blocks` to a request.
    """
    if not groups or not blocks:
        return
    tables = getattr(runner, "block_tables", None)
    if tables is None:
        _forget_on_host(runner, groups, blocks)
        return
    rows = [tables.block_tables[group].gpu for group in groups]
    gone = _among(runner.kv_cache_config.num_blocks, blocks, rows[0].device)
    for table in rows:
        _forget_on_device(table, gone)


def _forget_on_host(runner: Any, groups: Sequence[int], blocks: Collection[int]) -> None:
    """Replace `blocks` by the null block in the first runner's rows, once the last step's copy of
    the rows from the host to the device has ended."""
    copied = getattr(runner, "prepare_inputs_event", None)
    if copied is not None:
        copied.synchronize()
    batch, numbers = runner.input_batch, np.fromiter(blocks, np.int32)
    for group in groups:
        rows = batch.block_table.block_tables[group].block_table.np[: batch.num_reqs]
        rows[np.isin(rows, numbers)] = 0
        for state in runner.requests.values():  # from which a row is written anew
            names = state.block_ids[group]
            names[:] = [0 if name in blocks else name for name in names]


def _forget_on_device(rows: torch.Tensor, gone: torch.Tensor) -> None:
    """Replace `gone` blocks in the second runner's `rows`: enqueued like steps, so after all
    earlier ones; the host never waits."""
    rows.masked_fill_(gone.index_select(0, rows.reshape(-1)).view_as(rows), 0)


def _among(universe: int, blocks: Collection[int], device: torch.device) -> torch.Tensor:
    """Return a mask over all blocks that is true for these ones."""
    numbers = torch.tensor(list(blocks), dtype=torch.int64)
    if device.type == "cuda":
        numbers = numbers.pin_memory().to(device, non_blocking=True)
    return torch.zeros(universe, dtype=torch.bool, device=device).index_fill_(0, numbers, True)
