"""Models as vLLM builds them, without memory: on torch's meta device.

A few models read a value of a tensor while they are built, which a tensor without memory does not
have. Those are built on the CPU, where memory that is never written is not allocated either.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.config import replace
from vllm.distributed import parallel_state
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models.interfaces import supports_any_eagle
from vllm.model_executor.models.utils import process_eagle_weight
from vllm.utils.torch_utils import set_default_torch_dtype

DEVICES = ("meta", "cpu")
NO_DATA = "Cannot copy out of meta tensor"


def alone() -> None:
    """Set up torch's distributed state with this process alone, as vLLM's layers expect it."""
    with tempfile.NamedTemporaryFile(prefix="mirage-probe-") as file:
        parallel_state.init_distributed_environment(1, 0, f"file://{file.name}", 0, "gloo")
        parallel_state.ensure_model_parallel_initialized(1, 1)


class NeedsNumbers(Exception):
    """Error: this model cannot be built on the meta device."""


def built(
    config: Any, found: Callable[[torch.nn.Module], None], device: str
) -> list[torch.nn.Module]:
    """Return the model of vLLM's configuration, with room for its adapters, and its draft model.

    `found` is called with the model as vLLM built it, before adapters change its modules. `device`
    is one of `DEVICES`. Raise `NeedsNumbers` if the model cannot be built on "meta"; then call it
    in a new process for "cpu". The layers of both models are noted in `config`, where vLLM looks
    for what needs a KV cache.
    """
    try:
        with set_default_torch_dtype(config.model_config.dtype), torch.device(device):
            return _models(config, found, torch.device(device))
    except NotImplementedError as error:
        if device == DEVICES[0] and NO_DATA in str(error):
            raise NeedsNumbers(str(error)) from None
        raise


def _models(
    config: Any, found: Callable[[torch.nn.Module], None], device: torch.device
) -> list[torch.nn.Module]:
    models = [initialize_model(vllm_config=config)]
    found(models[0])
    if config.lora_config is not None:
        _make_room_for_adapters(config, models[0], device)
    draft = getattr(config.speculative_config, "draft_model_config", None)
    if draft is not None and config.speculative_config.method != "ngram":
        models.append(_draft(config, draft, models[0]))
    return models


def _make_room_for_adapters(config: Any, model: torch.nn.Module, device: torch.device) -> None:
    manager = LRUCacheWorkerLoRAManager(config, device, model.embedding_modules)
    manager.create_lora_manager(model, config)


def _draft(config: Any, draft: Any, target: torch.nn.Module) -> torch.nn.Module:
    """Return the draft model as vLLM's proposers build it: a model of its own, or a head of the
    served model."""
    if config.speculative_config.method == "draft_model":
        own = replace(config, quant_config=None, model_config=draft)
        return initialize_model(vllm_config=own, prefix="draft_model")
    model = initialize_model(vllm_config=config, model_config=draft)
    if supports_any_eagle(model) and (names := _tensor_names(Path(draft.model))):
        _share(model, target, names)
    return model


def _share(draft: torch.nn.Module, target: torch.nn.Module, names: Iterable[str]) -> None:
    """Give a head of EAGLE's those of `target`'s embeddings and output head that its own checkpoint
    lacks.

    vLLM also shares some that are present and equal, which only their values show.
    """
    for name in names:
        process_eagle_weight(draft, name)
    table, own = _embeddings(target), _embeddings(draft)
    lacking = None not in (table, own) and not draft.has_own_embed_tokens
    if lacking and table.weight.shape == own.weight.shape:
        own.weight = table.weight
    if not draft.has_own_lm_head and hasattr(draft, "lm_head") and hasattr(target, "lm_head"):
        draft.lm_head = target.lm_head


def _embeddings(model: torch.nn.Module) -> Any:
    """Return a model's embeddings under either name that vLLM's models use; None if it has
    neither."""
    inner = getattr(model, "model", None)
    return getattr(inner, "embed_tokens", getattr(inner, "embedding", None))


def _tensor_names(folder: Path) -> list[str]:
    """Return the names of all tensors in the folder's safetensors files; empty if there are
    none."""
    names: list[str] = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            names += tensors.keys()
    return names
