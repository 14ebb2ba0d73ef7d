"""Packing of weights by vLLM's kernels for a CPU, applied to a model without memory.

Quantised matrices are packed in place: they may grow, and may lose their zero points. For AMX,
small matrices of heads and embeddings get a packed copy, and latent attention keeps packed copies
of a matrix that it then drops. vLLM's own functions decide and pack, over zeros, a module at a
time. Other packing changes no size that torch knows of: oneDNN has its copies in memory of its own.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.utils import check_cpu_sgl_kernel
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.platforms import current_platform

from mirage.engine import stack

PLAIN = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
MATRIX = 2

Packed = dict[str, torch.Tensor | None]
"""Parameters by name, on the meta device; None for one that packing has removed."""


def apply(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Give `model` the parameters that it has on this processor once its weights are loaded."""
    if not current_platform.is_cpu():
        return
    tiles = torch.cpu._is_amx_tile_supported()
    known: dict[Any, Packed] = {}
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, PLAIN):
            if tiles:
                _pack_small(module, method)
        elif isinstance(module, LinearBase) and not stack.packed_by_onednn(module):
            _pack_quantised(module, known)
    for module in model.modules() if tiles else ():
        if stack.absorbs(module):
            _absorb(module, dtype)


def _pack_small(module: Any, method: Any) -> None:
    """Pack a small weight as vLLM would. The function that the module gets holds up to a mebibyte
    on the CPU."""
    if (weight := module._parameters.get("weight")) is None:
        return  # it stands for another module, or has no weight of its own
    plain = getattr(module, "_cpu_skip_gemm_dispatch", False) or weight.ndim != MATRIX
    if plain or not check_cpu_sgl_kernel(*weight.size(), weight.dtype):
        return
    packed = _with_zeros(module)
    method.process_weights_after_loading(packed)
    module.cpu_linear = packed.cpu_linear
    _adopt(module, _parameters(packed))


def _pack_quantised(module: Any, known: dict[Any, Packed]) -> None:
    before = [(n, p.shape, p.dtype) for n, p in module.named_parameters(recurse=False)]
    key = (type(module.quant_method), tuple(before), tuple(getattr(module, "logical_widths", ())))
    if key not in known:
        packed = _with_zeros(module)
        module.quant_method.process_weights_after_loading(packed)
        known[key] = _parameters(packed)
    _adopt(module, known[key])


def _absorb(attention: Any, dtype: torch.dtype) -> None:
    """Pack as vLLM's attention does: its `impl` gets packed copies, and their matrix is removed."""
    impl, projection = attention.impl, attention.kv_b_proj
    device = projection.weight.device
    impl.kv_b_proj = _with_zeros(projection)
    impl.process_weights_after_loading(dtype)
    impl.kv_b_proj = projection
    for name, value in vars(impl).items():
        if isinstance(value, torch.Tensor):
            setattr(impl, name, torch.empty_like(value, device=device))
    projection.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)


def _with_zeros(module: Any) -> Any:
    """Return a copy of `module` whose parameters are zeros on the CPU."""
    copied = copy.copy(module)
    own = {name: p if p is None else _zeros(p) for name, p in module._parameters.items()}
    copied.__dict__ = vars(module) | {"_parameters": own}
    return copied


def _zeros(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return zeros of the type of vLLM's parameter, with the attributes that packing needs."""
    zeros = torch.zeros(parameter.shape, dtype=parameter.dtype, device="cpu")
    made = torch.Tensor._make_subclass(type(parameter), zeros, False)  # type: ignore[attr-defined]
    vars(made).update(vars(parameter))
    return made  # type: ignore[no-any-return]


def _parameters(packed: Any) -> Packed:
    return {
        name: parameter if parameter is None else torch.empty_like(parameter, device="meta")
        for name, parameter in packed._parameters.items()
    }


def _adopt(module: Any, packed: Packed) -> None:
    """Give `module` parameters of these shapes and types, where its own differ."""
    device = next(p.device for p in module._parameters.values() if p is not None)
    for name, parameter in packed.items():
        own = getattr(module, name, None)
        if parameter is None:
            module.register_parameter(name, None)
        elif own is None or (own.shape, own.dtype) != (parameter.shape, parameter.dtype):
            fresh = torch.empty_like(parameter, device=device)
            module.register_parameter(name, torch.nn.Parameter(fresh, requires_grad=False))
