"""Models as vLLM builds them, without memory: on torch's meta device.

A few models look at a number while they are built, which a tensor without memory does not have.
Those are built on the CPU, where memory that nobody writes to is not taken either.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from vllm.config import replace
from vllm.distributed import parallel_state
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype

DEVICES = ("meta", "cpu")
NO_DATA = "Cannot copy out of meta tensor"


def alone() -> None:
    """A world of one process, which layers ask for their part of."""
    with tempfile.NamedTemporaryFile(prefix="mirage-probe-") as file:
        parallel_state.init_distributed_environment(1, 0, f"file://{file.name}", 0, "gloo")
        parallel_state.ensure_model_parallel_initialized(1, 1)


class NeedsNumbers(Exception):
    """This model cannot be built on the meta device."""


def built(
    config: Any, found: Callable[[torch.nn.Module], None], device: str
) -> list[torch.nn.Module]:
    """The model of vLLM's configuration, with room for its adapters, and its draft model.

    `found` sees the model as vLLM built it, before adapters change its modules. `device` is one
    of `DEVICES`. Raises `NeedsNumbers`; then ask again, in a new process, for the other one.
    The layers of both are noted in `config`, where vLLM looks for what needs a KV cache.
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
        models.append(_draft(config, draft))
    return models


def _make_room_for_adapters(config: Any, model: torch.nn.Module, device: torch.device) -> None:
    manager = LRUCacheWorkerLoRAManager(config, device, model.embedding_modules)
    manager.create_lora_manager(model, config)


def _draft(config: Any, draft: Any) -> torch.nn.Module:
    """As vLLM's proposers do: a draft model is one of its own, a head belongs to the model."""
    if config.speculative_config.method == "draft_model":
        own = replace(config, quant_config=None, model_config=draft)
        return initialize_model(vllm_config=own, prefix="draft_model")
    return initialize_model(vllm_config=config, model_config=draft)
