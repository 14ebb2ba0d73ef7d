"""Seeded requests whose prompt is split over several steps, on a CPU.

vLLM samples a token for every request of a step and discards those of prompts that are not complete
yet. So that a seeded request draws the same numbers however its prompt was split, vLLM then sets
its generator back by an offset. Generators of a CPU do not have one, so the engine ends. Here the
sampler does not get such a generator at all, so it need not be set back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def discarded_draw_nothing(model_runner: Any) -> Iterator[None]:
    """Context in which vLLM samples one step without the generators of requests whose token is
    discarded.

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
