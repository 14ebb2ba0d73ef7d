"""Requests without an adapter in a step with requests that have one, on a CPU.

vLLM numbers "no adapter" -1. Its kernels for LoRA on a CPU take that for the last slot, so such
requests are computed with the adapter in that slot, and their text is wrong. Here their rows are
set to zero before the kernels, which then add nothing to what the model computed. For the logprobs
of a prompt the kernels are called with slots of other rows, which ended the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu

KERNELS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")
"""Names of vLLM's functions for LoRA on a CPU that all its other ones call."""

Kernel = Callable[..., None]


def stay_unadapted() -> None:
    """Replace vLLM's `KERNELS` in this process. A second call does nothing."""
    for name in KERNELS:
        kernel: Kernel = getattr(lora_ops, name)
        if hasattr(kernel, "__wrapped__"):
            continue
        careful = _without_last_slot(kernel)
        for module in (lora_ops, punica_cpu):
            setattr(module, name, careful)


def _without_last_slot(kernel: Kernel) -> Kernel:
    @wraps(kernel)
    def careful(
        inputs: torch.Tensor,
        weights: torch.Tensor,
        outputs: torch.Tensor,
        slots: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if len(slots) != len(inputs):
            _check_untouched(weights)
            return
        adapted = torch.where((slots < 0)[:, None], 0, inputs)
        kernel(adapted, weights, outputs, slots, *args, **kwargs)

    return careful


def _check_untouched(weights: torch.Tensor) -> None:
    """Raise `RuntimeError` for logprobs of a prompt with an adapter of the output head: vLLM has
    slots for sampled tokens only.

    An adapter without weights for the output head adds nothing there.
    """
    if weights.any():
        raise RuntimeError(
            "logprobs of a prompt cannot be had with an adapter of the output head on a CPU"
        )
