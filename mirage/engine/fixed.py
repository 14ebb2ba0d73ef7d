"""Device memory that never moves: everything that models hold besides the moving layers.

It includes other parameters and buffers, plain attributes (MLA's absorbed weights, LoRA's stacked
adapters), and a drafter's model. Each storage counts once, also one that models share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

from mirage.engine.tensors import held, total_bytes

DRAFTERS = ("drafter", "speculator")
"""Attributes of vLLM's two model runners that hold a drafter."""


def fixed_bytes(models: Iterable[torch.nn.Module], moving: set[int], *devices: str) -> int:
    """Return the bytes of those storages of `models` that do not move, and that are on one of
    `devices` ("cpu", "cuda") or on the meta device.

    `moving` are the ids of the tensors that move.
    """
    tensors = chain.from_iterable(held(part) for model in models for part in model.modules())
    return total_bytes((t for t in tensors if id(t) not in moving), *devices)


def models_of(runner: Any) -> Iterator[torch.nn.Module]:
    """Yield the model that a model runner serves, and the model that proposes tokens, if there is
    one."""
    yield runner.get_model()
    for name in DRAFTERS:
        model = getattr(getattr(runner, name, None), "model", None)
        if isinstance(model, torch.nn.Module):
            yield model
