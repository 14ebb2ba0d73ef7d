"""Decoder layers of a model, and whether their parameters can move.

Both are seen from what vLLM built, before it loads weights, also on the meta device: nothing
depends on how a model's code makes its layers, nor on names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.utils import check_cpu_sgl_kernel
from vllm.model_executor.model_loader import base_loader
from vllm.platforms import CpuArchEnum, current_platform

from mirage.engine.tensors import Holdings

PACKED = "oneDNN keeps their weights packed in memory of its own ({})"
GONE = "a kernel has taken their weights away while they were loaded ({})"
EMPTIED = 10
"""A module that keeps less than one in that many of its parameters' bytes was emptied."""

Found = Callable[[torch.nn.Module], None]


def find(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of the stack that moves; empty if there is none.

    Of the outermost lists of modules with an attention inside (also MLA, Mamba, linear
    attention), the one with the most parameters. Other stacks (an encoder) stay.
    """
    stacks = [list(stack) for stack in _stacks(model, set())]
    return max(stacks, key=lambda layers: sum(map(parameter_bytes, layers)), default=[])


def _stacks(module: torch.nn.Module, seen: set[int]) -> Iterator[torch.nn.ModuleList]:
    for child in module.children():
        if id(child) in seen:
            continue
        seen.add(id(child))
        if isinstance(child, torch.nn.ModuleList) and attends(child):
            yield child
        else:
            yield from _stacks(child, seen)


def attends(module: torch.nn.Module) -> bool:
    """True if `module` has a layer with a KV cache or a state inside."""
    return any(isinstance(part, AttentionLayerBase) for part in module.modules())


def parameter_bytes(module: torch.nn.Module) -> int:
    """Bytes of its parameters, as far as they are known already."""
    known = (p for p in module.parameters() if not is_lazy(p))
    return sum(p.numel() * p.element_size() for p in known)


def why_stays(layers: list[torch.nn.Module], model: torch.nn.Module) -> str | None:
    """Why the parameters of `layers` cannot move; None if nothing speaks against it.

    Known before weights are loaded. What only loading shows, `emptied` and the proof tell.
    """
    if not layers:
        return "no stack of layers with attention was found in it"
    if len(layers) == 1:
        return "it has one layer only"
    for name, module in torch.nn.ModuleList(layers).named_modules():
        if why := _why_module_stays(name, module):
            return why
    holdings = Holdings(layers, model)
    if not any(holdings.only_of(index) for index in range(len(layers))):
        return "its layers have no parameters of their own"
    return None


def _why_module_stays(name: str, module: torch.nn.Module) -> str | None:
    parameters = [p for p in module.parameters(recurse=False) if not is_lazy(p)]
    if any(is_traceable_wrapper_subclass(p) for p in parameters):
        return f"a weight is a tensor of tensors ({name})"
    return PACKED.format(name) if packed_by_onednn(module) else None


def packed_by_onednn(module: torch.nn.Module) -> bool:
    """True if an int8 linear will hand its weight to oneDNN on a CPU and forget it.

    As vLLM's `CPUInt8ScaledMMLinearKernel` decides when it processes the loaded weights.
    """
    kernel: Any = getattr(getattr(module, "scheme", None), "kernel", None)
    kinds = {kind.__name__ for kind in type(kernel).__mro__}
    if not current_platform.is_cpu() or "CPUInt8ScaledMMLinearKernel" not in kinds:
        return False
    weight = getattr(module, kernel.layer_param_names[0])
    own = current_platform.get_cpu_architecture() == CpuArchEnum.X86 and (
        kernel.config.input_symmetric and check_cpu_sgl_kernel(*weight.size(), weight.dtype)
    )
    return not own


def absorbs(module: torch.nn.Module) -> bool:
    """True of a latent attention that packs a projection's weight into tensors of its own.

    So vLLM's does on AMX. They are no parameters and stay in place, and the weight is let go.
    """
    return bool(getattr(module, "is_amx_bmm_enabled", False))


def absorbed(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that attentions of `model` have packed so, by name."""
    for name, module in model.named_modules():
        if absorbs(module):
            for key, value in sorted(vars(module.impl).items()):
                if isinstance(value, torch.Tensor):
                    yield f"{name}.impl.{key}", value


def keep_plain_weights(layers: Iterable[torch.nn.Module]) -> None:
    """vLLM's CPU backend would pack weights away and leave nothing to move.

    Only plain linear ones: what it packs otherwise (convolutions, experts, quantised weights)
    stays a parameter, and its kernels rely on it. No effect on a GPU.
    """
    for layer in layers:
        for module in layer.modules():
            method = getattr(module, "quant_method", None)
            weight = getattr(module, "weight", None)
            if isinstance(method, UnquantizedLinearMethod) and getattr(weight, "ndim", 0) == 2:
                module._cpu_skip_gemm_dispatch = True  # type: ignore[assignment]


def matrix_bytes(module: torch.nn.Module) -> int:
    """Bytes of the matrices that `module` itself has: what a kernel may pack away.

    Not of numbers, such as an attention's scales, which vLLM reads when they are loaded.
    """
    own = (p for p in module.parameters(recurse=False) if not is_lazy(p) and p.dim() > 1)
    return sum(p.numel() * p.element_size() for p in own)


class MatrixSizes:
    """The bytes of the matrices in every module of some layers, as vLLM built them."""

    def __init__(self, layers: Iterable[torch.nn.Module]) -> None:
        named = [each for layer in layers for each in layer.named_modules()]
        self._built = [(name, module, matrix_bytes(module)) for name, module in named]
        self._absorbed = {id(module.kv_b_proj) for _, module in named if absorbs(module)}

    def emptied(self) -> str | None:
        """Name of a module whose weight was repacked into memory that cannot be found any more."""
        for name, module, nbytes in self._built:
            if id(module) not in self._absorbed and matrix_bytes(module) * EMPTIED < nbytes:
                return name
        return None


@contextmanager
def built(found: Found) -> Iterator[None]:
    """Tell `found` of the first model that vLLM builds, before its weights are loaded.

    The first is the one to serve; a drafter is built later, by the same function.
    """
    initialize: Any = base_loader.initialize_model
    waiting = [found]

    def initialize_model(*args: Any, **kwargs: Any) -> torch.nn.Module:
        model: torch.nn.Module = initialize(*args, **kwargs)
        if waiting:
            waiting.pop()(model)
        return model

    base_loader.initialize_model = initialize_model
    try:
        yield
    finally:
        base_loader.initialize_model = initialize
