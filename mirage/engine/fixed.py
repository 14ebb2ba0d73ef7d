"""The device memory that never moves: everything that models hold beside the moving layers.

Other parameters and buffers, plain attributes (MLA's absorbed weights, LoRA's stacked adapters),
a drafter's model. Each storage counts once, so what models share does, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

from mirage.engine.tensors import held, total_bytes

DRAFTERS = ("drafter", "speculator")
"""Attributes by which vLLM's two model runners hold a drafter."""


def fixed_bytes(models: Iterable[torch.nn.Module], moving: set[int], *devices: str) -> int:
    """Bytes on `devices` ("cpu", "cuda") of the storages of `models` that do not move.

    `moving` are the ids of the tensors that do.
    """
    tensors = chain.from_iterable(held(part) for model in models for part in model.modules())
    return total_bytes((t for t in tensors if id(t) not in moving), *devices)


def models_of(runner: Any) -> Iterator[torch.nn.Module]:
    """The model that a model runner serves, and the one that proposes tokens, if any."""
    yield runner.get_model()
    for name in DRAFTERS:
        model = getattr(getattr(runner, name, None), "model", None)
        if isinstance(model, torch.nn.Module):
            yield model
