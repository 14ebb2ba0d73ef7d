"""Rows of block tables that name no block beyond a request's own.

The second model runner copies as many block ids into a step's row as the request has. What an
earlier, longer request left behind in that row stays. vLLM's whole KV cache is memory, so it does
not matter there if a kernel loads a tile beyond the end and masks it. Here such a block may have
been given away, and reading it is an illegal address. Block 0, the null block, always is memory.
"""

from __future__ import annotations

from typing import Any

import torch


def zero_tails(runner: Any) -> bool:
    """Let rows end in zeros; False if this runner clears rows itself, as the first one does."""
    tables = getattr(runner, "block_tables", None)
    if tables is None or not hasattr(tables, "gather_block_tables"):
        return False
    gather = tables.gather_block_tables

    def gathered(
        idx_mapping: torch.Tensor,
        num_reqs_padded: int,
        out: tuple[torch.Tensor, ...] | None = None,
        out_ptrs: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        # On the stream that the copy is enqueued on, so before it.
        for rows in tables.input_block_tables if out is None else out:
            rows[:num_reqs_padded].zero_()
        made: tuple[torch.Tensor, ...] = gather(idx_mapping, num_reqs_padded, out, out_ptrs)
        return made

    tables.gather_block_tables = gathered
    return True
