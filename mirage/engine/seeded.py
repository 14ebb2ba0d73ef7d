"""Requests with a seed of their own whose prompt is split over several steps, on a CPU.

vLLM samples a token for every request of a step and throws away those of prompts that are not
complete yet. So that a seeded request draws the same numbers however its prompt was split, vLLM
then turns its generator back, by an offset that generators of a CPU do not have: the engine
ends. Here such a generator is not shown to the sampler at all, so nothing has to be turned back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def discarded_draw_nothing(model_runner: Any) -> Iterator[None]:
    """While vLLM samples one step, hide the generators of requests whose token is discarded.

    For vLLM's first model runner; its second one keeps seeds, not generators.
    """
    batch = getattr(model_runner, "input_batch", None)
    generators: dict[int, torch.Generator] = getattr(batch, "generators", {})
    hidden: dict[int, torch.Generator] = {}
    if generators:
        discarded = model_runner.discard_request_mask.np
        hidden = {row: generators.pop(row) for row in [*generators] if discarded[row]}
    try:
        yield
    finally:
        generators.update(hidden)
