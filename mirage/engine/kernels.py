"""Kernels that a build of vLLM for CPUs lacks, which vLLM itself detects only after loading, or
later.

Modules that only a CPU has are imported only there: on a GPU nothing here may end an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from vllm.platforms import current_platform

SCAN = "selective_scan_fwd"
FOUR_BITS = "cpu_gemm_wna16"
QUANTISE = "static_scaled_fp8_quant"
"""Kernel that a build of vLLM registers without arguments if it does not support it."""


def missing(model: torch.nn.Module) -> str | None:
    """Return the reason why `model` could be loaded but not computed here; None if none is
    known."""
    if not current_platform.is_cpu():
        return None
    return next(_missing(model), None)


def unread(config: Any) -> str | None:
    """Return the reason why vLLM's attention on a CPU cannot read this configuration's KV cache;
    None if it can."""
    from vllm.v1.attention.backends import cpu_attn

    cache, model = config.cache_config, config.model_config
    try:
        cpu_attn._get_attn_isa(
            model.dtype, cache.block_size, model.get_head_size(), cache.cache_dtype
        )
    except NotImplementedError as error:
        return str(error)
    return None


def _missing(model: torch.nn.Module) -> Iterator[str]:
    from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
    from vllm.model_executor.layers.mamba.mamba_mixer import MambaMixer

    scans, quantises = hasattr(torch.ops._C, SCAN), _takes_arguments(QUANTISE)
    multiplies = hasattr(torch.ops._C, FOUR_BITS)
    for name, module in model.named_modules():
        if not scans and isinstance(module, MambaMixer):
            yield f"this vLLM for CPUs has no kernel {SCAN}, which its Mamba layers need ({name})"
        if not quantises and _has(module, _quantises_inputs):
            yield f"this vLLM for CPUs has no kernel {QUANTISE}, which its FP8 layers need ({name})"
        if not multiplies and _has(module, lambda part: isinstance(part, CPUWNA16LinearKernel)):
            yield (
                f"vLLM has no kernel {FOUR_BITS} for this processor, which its layers of four bits "
                f"need ({name})"
            )


def _takes_arguments(operator: str) -> bool:
    found = getattr(torch.ops._C, operator, None)
    return found is not None and bool(found.default._schema.arguments)


def _quantises_inputs(part: Any) -> bool:
    """True if a part of a model quantises its inputs to eight bits. Kernels for AMX have the
    function and do not use it.
    """
    return hasattr(part, "quant_fp8") and getattr(part, "apply_input_quant", True)


def _has(module: torch.nn.Module, wanted: Callable[[Any], bool]) -> bool:
    """True if the object that computes a linear layer has a part that `wanted` accepts."""
    for owner in ("quant_method", "scheme"):
        parts: dict[str, Any] = getattr(getattr(module, owner, None), "__dict__", {})
        if any(map(wanted, parts.values())):
            return True
    return False
