"""Ranks of tokens, which requests with log-probabilities get, counted on a CPU without a compiler.

vLLM counts them in a function that torch compiles at its first call: in the step of the first
request that asks for log-probabilities, while all other requests of the engine stand. Compiled, it
needs no memory beside its input; here it gets the same from parts of few rows.
"""

from __future__ import annotations

import torch
from vllm.v1.sample import sampler

PART = 1 << 22
"""Most values that are compared at a time: each takes a byte."""


def count_uncompiled() -> None:
    """Replace vLLM's `batched_count_greater_than` in this process. A second call does nothing."""
    sampler.batched_count_greater_than = counted


def counted(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return for each row of `x` the number of its values that are not less than the row's one
    value in `values`.

    `x` has the shape (rows, n), `values` (rows, 1); the result is (rows,), of int64.
    """
    rows = max(1, PART // x.shape[1])
    parts = zip(torch.split(x, rows), torch.split(values, rows), strict=True)
    return torch.cat([(part >= least).sum(-1) for part, least in parts])
