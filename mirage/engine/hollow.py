"""Models as vLLM builds them, without memory: on torch's meta device."""

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

META = torch.device("meta")


def alone() -> None:
    """A world of one process, which layers ask for their part of."""
    with tempfile.NamedTemporaryFile(prefix="mirage-probe-") as file:
        parallel_state.init_distributed_environment(1, 0, f"file://{file.name}", 0, "gloo")
        parallel_state.ensure_model_parallel_initialized(1, 1)


def built(config: Any, found: Callable[[torch.nn.Module], None]) -> list[torch.nn.Module]:
    """The model of vLLM's configuration, with room for its adapters, and its draft model.

    `found` sees the model as vLLM built it, before adapters change its modules.
    The layers of both are noted in `config`, where vLLM looks for what needs a KV cache.
    """
    with set_default_torch_dtype(config.model_config.dtype), META:
        models = [initialize_model(vllm_config=config)]
        found(models[0])
        if config.lora_config is not None:
            _make_room_for_adapters(config, models[0])
        draft = getattr(config.speculative_config, "draft_model_config", None)
        if draft is not None and config.speculative_config.method != "ngram":
            models.append(_draft(config, draft))
    return models


def _make_room_for_adapters(config: Any, model: torch.nn.Module) -> None:
    manager = LRUCacheWorkerLoRAManager(config, META, model.embedding_modules)
    manager.create_lora_manager(model, config)


def _draft(config: Any, draft: Any) -> torch.nn.Module:
    """As vLLM's proposers do: a draft model is one of its own, a head belongs to the model."""
    if config.speculative_config.method == "draft_model":
        own = replace(config, quant_config=None, model_config=draft)
        return initialize_model(vllm_config=own, prefix="draft_model")
    return initialize_model(vllm_config=config, model_config=draft)
