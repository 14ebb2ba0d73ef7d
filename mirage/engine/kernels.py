"""Kernels that a build of vLLM for CPUs lacks: vLLM itself notices at the first step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm.model_executor.layers.mamba.mamba_mixer import MambaMixer
from vllm.platforms import current_platform

SCAN = "selective_scan_fwd"
QUANTISE = "static_scaled_fp8_quant"
"""Builds that cannot do it register it without arguments."""


def missing(model: torch.nn.Module) -> str | None:
    """Why `model` could be loaded but not computed here; None if nothing is known."""
    if not current_platform.is_cpu():
        return None
    return next(_missing(model), None)


def _missing(model: torch.nn.Module) -> Iterator[str]:
    scans, quantises = hasattr(torch.ops._C, SCAN), _takes_arguments(QUANTISE)
    for name, module in model.named_modules():
        if not scans and isinstance(module, MambaMixer):
            yield f"this vLLM for CPUs has no kernel {SCAN}, which its Mamba layers need ({name})"
        if not quantises and _quantises_activations(module):
            yield f"this vLLM for CPUs has no kernel {QUANTISE}, which its FP8 layers need ({name})"


def _takes_arguments(operator: str) -> bool:
    found = getattr(torch.ops._C, operator, None)
    return found is not None and bool(found.default._schema.arguments)


def _quantises_activations(module: torch.nn.Module) -> bool:
    """Whether the kernel of a linear layer makes FP8 of what it is given."""
    for owner in ("quant_method", "scheme"):
        parts: dict[str, Any] = getattr(getattr(module, owner, None), "__dict__", {})
        if any(hasattr(part, "quant_fp8") for part in parts.values()):
            return True
    return False
