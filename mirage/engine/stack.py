"""Decoder layers of a model, and the check that their parameters can move.

Both are derived from the modules that vLLM built, before it loads weights, also on the meta device:
nothing depends on how a model's code makes its layers, nor on names.
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

from mirage.engine.packed_linear import PackedLinearMethod
from mirage.engine.tensors import Holdings

PACKED = "oneDNN keeps their weights packed in memory of its own ({})"
GONE = "a kernel has taken their weights away while they were loaded ({})"
EMPTIED = 10
"""Divisor: a module whose matrices have kept less than 1/`EMPTIED` of their bytes was emptied."""

Found = Callable[[torch.nn.Module], None]


def find(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers of the stack that moves; empty if there is none.

    It is, of the outermost lists of modules with an attention inside (also MLA, Mamba, linear
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
    """True if a layer with a KV cache or a state is inside `module`."""
    return any(isinstance(part, AttentionLayerBase) for part in module.modules())


def parameter_bytes(module: torch.nn.Module) -> int:
    """Return the bytes of a module's parameters, as far as they are known already."""
    known = (p for p in module.parameters() if not is_lazy(p))
    return sum(p.numel() * p.element_size() for p in known)


def why_stays(layers: list[torch.nn.Module], model: torch.nn.Module) -> str | None:
    """Return the reason why the parameters of `layers` cannot move; None if none is known.

    It is known before weights are loaded. `emptied` and the proof find reasons that only show after
    loading.
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
    """True if an int8 linear layer will hand its weight to oneDNN on a CPU and drop it.

    vLLM's `CPUInt8ScaledMMLinearKernel` decides in this way when it processes the loaded weights.
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
    """True for a latent attention that packs a projection's weight into tensors of its own.

    vLLM's does so on AMX. These tensors are no parameters and stay in place, and the weight is
    dropped.
    """
    return bool(getattr(module, "is_amx_bmm_enabled", False))


def absorbed(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors into which attentions of `model` have packed a projection's weight (see
    `absorbs`), by name."""
    for name, module in model.named_modules():
        if absorbs(module):
            for key, value in sorted(vars(module.impl).items()):
                if isinstance(value, torch.Tensor):
                    yield f"{name}.impl.{key}", value


def keep_weights(layers: Iterable[torch.nn.Module]) -> None:
    """Keep vLLM's CPU backend from packing linear weights away, which would leave nothing to move.

    They stay parameters, packed where `PackedLinearMethod` can, else plain. Those that vLLM itself
    keeps plain stay so, since something else reads them. Other weights that it packs
    (convolutions, experts, quantised weights) stay parameters, and its kernels rely on that. No
    effect on a GPU.
    """
    for layer in layers:
        for module in layer.modules():
            method = getattr(module, "quant_method", None)
            weight = getattr(module, "weight", None)
            if not isinstance(method, UnquantizedLinearMethod) or getattr(weight, "ndim", 0) != 2:
                continue
            read = getattr(module, "_cpu_skip_gemm_dispatch", False)
            if type(method) is UnquantizedLinearMethod and current_platform.is_cpu() and not read:
                module.quant_method = PackedLinearMethod()
            module._cpu_skip_gemm_dispatch = True  # type: ignore[assignment]


def matrix_bytes(module: torch.nn.Module) -> int:
    """Return the bytes of the matrices that `module` itself has, which a kernel may pack away.

    Numbers and vectors are left out, such as an attention's scales, which vLLM removes once it has
    read them.
    """
    own = (p for p in module.parameters(recurse=False) if not is_lazy(p) and p.dim() > 1)
    return sum(p.numel() * p.element_size() for p in own)


class MatrixSizes:
    """Bytes of the matrices in every module of some layers, as vLLM built them."""

    def __init__(self, layers: Iterable[torch.nn.Module]) -> None:
        named = [each for layer in layers for each in layer.named_modules()]
        self._built = [(name, module, matrix_bytes(module)) for name, module in named]
        self._absorbed = {id(module.kv_b_proj) for _, module in named if absorbs(module)}

    def emptied(self) -> str | None:
        """Return the name of a module whose weight was repacked into unknown memory; None if there
        is none."""
        for name, module, nbytes in self._built:
            if id(module) not in self._absorbed and matrix_bytes(module) * EMPTIED < nbytes:
                return name
        return None


@contextmanager
def built(found: Found) -> Iterator[None]:
    """Context in which `found` is called with the first model that vLLM builds, before its weights
    are loaded.

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
