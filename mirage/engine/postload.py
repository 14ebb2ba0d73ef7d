"""Changes that vLLM makes in a model's memory after building it, applied to a model without memory.

When weights are loaded, a CPU's kernels keep copies of convolutions, and on AMX pack much of the
rest (`packing.py`). At the first step, rotary tables take the type of the queries. vLLM's own
functions decide; where they read values they get a stand-in.
"""

from __future__ import annotations

import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

from mirage.engine import packing

CONVOLUTION = 3
"""Number of dimensions of a convolution's weight, which vLLM keeps in a linear layer."""


ZEROS = ("q_zero_point", "k_zero_point", "v_zero_point")
SCALES = ("q_scale", "k_scale", "v_scale", "prob_scale", *ZEROS)
"""Parameters of an attention with a KV cache that may be quantised; they exist until weights are
loaded."""


def apply(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Give `model` the tensors that it has while it serves in `dtype`.

    Their sizes are right afterwards, their values are not.
    """
    packing.apply(model, dtype)
    for module in model.modules():
        if isinstance(module, RotaryEmbeddingBase) and hasattr(module, "cos_sin_cache"):
            module._match_cos_sin_cache_dtype(module.cos_sin_cache.new_empty(0, dtype=dtype))
        method = getattr(module, "quant_method", None)
        if isinstance(method, BaseKVCacheMethod):
            _let_scales_go(module)
        weight = getattr(module, "weight", None)
        if not isinstance(method, UnquantizedLinearMethod) or weight is None:
            continue
        if weight.dim() == CONVOLUTION:
            _load_convolution(module, weight, method)


def _let_scales_go(attention: torch.nn.Module) -> None:
    """Remove the scales of an attention, which vLLM reads as plain numbers when it loads them."""
    for name in SCALES:
        if name in attention._parameters:
            delattr(attention, name)


def _load_convolution(
    module: torch.nn.Module, weight: torch.Tensor, method: UnquantizedLinearMethod
) -> None:
    """Process a stand-in of `weight` on the CPU, and give `module` the resulting tensors."""
    stand_in = torch.nn.Module()
    before = torch.zeros(weight.shape, dtype=weight.dtype, device="cpu")
    stand_in.weight = torch.nn.Parameter(before, requires_grad=False)
    method.process_weights_after_loading(stand_in)
    if stand_in.weight.data_ptr() != before.data_ptr():
        # Whatever looks at the old storage (Mamba2's view of it) still does.
        weight.data = torch.empty_like(stand_in.weight, device=weight.device)
    for name, value in vars(stand_in).items():
        if isinstance(value, torch.Tensor):
            setattr(module, name, torch.empty_like(value, device=weight.device))
