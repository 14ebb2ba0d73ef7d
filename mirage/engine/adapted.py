"""Check of a tenant's LoRA adapters: vLLM loads each of them into a model without memory.

vLLM itself accepts an adapter although the model lacks some or all of its modules; if it lacks all,
vLLM answers as the base model. It also accepts an adapter of a narrower model, and pads it with
zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.request import LoRARequest
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

ANOTHER = "name an adapter that was made for this model"


def refusal(config: Any, model: torch.nn.Module, adapters: Iterable[Any]) -> str | None:
    """Return the reason why the first unfit one of `adapters` cannot be served; None if all can.

    `adapters` are ``lora_modules`` as vLLM parses them; `model` is built with room for them.
    """
    if config.lora_config is None:
        return None
    workers = LRUCacheWorkerLoRAManager(config, torch.device("cpu"), model.embedding_modules)
    workers._adapter_manager = model.lora_manager
    for number, adapter in enumerate(adapters, start=1):
        request = LoRARequest(adapter.name, number, adapter.path)
        request.is_3d_lora_weight = adapter.is_3d_lora_weight
        if reason := _problem(workers, request):
            return f"adapter {adapter.name!r}: {reason}"
    return None


def _problem(workers: LRUCacheWorkerLoRAManager, request: LoRARequest) -> str | None:
    manager = workers._adapter_manager
    try:
        adapter = workers._load_adapter(request)
        if reason := next(_halves(adapter), None):
            return reason
        if not adapter.loras and not adapter.modules_to_save:
            return f"no tensor in {request.lora_path} belongs to a module of the model: {ANOTHER}"
        manager._create_merged_loras_inplace(adapter)
    except Exception as error:
        return f"vLLM cannot load it: {str(error).strip() or type(error).__name__}"
    return _stray(manager, adapter) or next(_misfits(manager, adapter), None)


def _halves(adapter: LoRAModel) -> Iterator[str]:
    """Yield a reason for each module with only one of its two matrices, or of another rank than
    adapter_config.json says; ranks of experts are not checked."""
    for name, weights in adapter.loras.items():
        if weights.lora_a is None or weights.lora_b is None:
            has, lacks = ("B", "A") if weights.lora_a is None else ("A", "B")
            yield f"its module {name!r} has lora_{has} and no lora_{lacks}: fetch it again"
        elif (rank := weights.lora_a.shape[0]) != weights.rank and ".experts" not in name:
            yield (
                f"its module {name!r} is of rank {rank}, adapter_config.json says {weights.rank}: "
                "correct that"
            )


def _stray(manager: Any, adapter: LoRAModel) -> str | None:
    """Return a reason if no weights of `adapter` apply to the model, or some belong to no module of
    it; else None.

    Weights for modules without room for adapters, such as vision towers, belong to the model and do
    not apply.
    """
    found = (manager._get_lora_layer_weights(adapter, name) for name in manager.modules)
    applied = {id(weights) for weights in found if weights is not None}
    if not applied and not adapter.modules_to_save:
        some = next(iter(adapter.loras))
        return f"none of its modules applies to the model, {some!r} for one: {ANOTHER}"
    unused = [name for name, weights in adapter.loras.items() if id(weights) not in applied]
    known = {name for name, _ in manager.model.named_modules(remove_duplicate=False)}
    stray = [name for name in unused if known.isdisjoint(_names(manager, name))]
    if not stray:
        return None
    return f"{len(stray)} of its modules are not in the model, such as {stray[0]!r}: {ANOTHER}"


def _names(manager: Any, name: str) -> Iterator[str]:
    """Yield the full name of a module, and the names of the modules into which vLLM packs it."""
    parent, _, last = name.removesuffix(".base_layer").rpartition(".")
    packs = (each for each, parts in manager.packed_modules_mapping.items() if last in parts)
    for each in (last, *packs):
        yield f"{parent}.{each}" if parent else each


def _misfits(manager: Any, adapter: LoRAModel) -> Iterator[str]:
    """Yield a reason for each linear layer whose inputs or outputs differ in number from the
    adapter's."""
    for name, module in manager.modules.items():
        weights = manager._get_lora_layer_weights(adapter, name)
        if weights is None or not isinstance(module, BaseLinearLayerWithLoRA):
            continue
        downs, ups = _listed(weights.lora_a), _listed(weights.lora_b)
        if len(downs) != len(module.lora_a_stacked):
            continue  # vLLM splits it when it is used
        rooms = zip(module.lora_a_stacked, module.lora_b_stacked, strict=True)
        for down, up, (into, out) in zip(downs, ups, rooms, strict=True):
            if down is None or up is None:
                continue
            has, wants = (down.shape[-1], up.shape[0]), (into.shape[-1], out.shape[-2])
            if has != wants:
                widths = f"{wants[0]} to {wants[1]} wide in the model, {has[0]} to {has[1]} in it"
                yield f"{name!r} is {widths}: {ANOTHER}"


def _listed(tensors: Any) -> list[torch.Tensor | None]:
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
