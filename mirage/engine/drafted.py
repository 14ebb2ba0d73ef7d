"""Sampled requests in a step with drafted tokens, on a CPU.

To verify drafts vLLM repeats each request's temperature, top-p and top-k for its drafted tokens.
Its kernel for CPUs writes numbers that are no integers into a copy, so later steps divide by
uninitialised memory: all texts of the step are wrong, those of greedy requests too. Here the
numbers are repeated without a kernel.
"""

from __future__ import annotations

import torch
from vllm.v1.sample import rejection_sampler


def repeat_settings() -> None:
    """Replace vLLM's `expand_batch_to_tokens` in this process. A second call does nothing."""
    rejection_sampler.expand_batch_to_tokens = _repeated


def _repeated(
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """Return each of `x`, [requests], repeated for its number of tokens by the cumulative counts
    `cu_num_tokens`; values equal to `replace_from` become `replace_to`."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    replaced = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return replaced.repeat_interleave(counts.to(torch.int64), output_size=num_tokens)
