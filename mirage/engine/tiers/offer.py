"""Offer of a pool to an engine, and the settings that vLLM gets with it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import KVCacheSpecKind, get_kv_cache_spec_kind

from mirage.engine import content, stack
from mirage.engine.kvbuffer import block_geometry
from mirage.engine.memory_worker import MemoryWorker
from mirage.engine.tiers import present
from mirage.engine.tiers.engine_tiers import EngineTiers
from mirage.engine_settings import EngineSettings
from mirage.tiers.contract import Member, Pool
from mirage.vllm_hooks import given

logger = logging.getLogger("mirage.engine.tiers")

OFF = "KV blocks are not kept below the device: %s"
KINDS = {
    KVCacheSpecKind.FULL_ATTENTION,
    KVCacheSpecKind.MLA_ATTENTION,
    KVCacheSpecKind.SLIDING_WINDOW,
}


def offer(
    worker: MemoryWorker,
    join: Callable[[Member], Pool],
    hidden: str | None,
    vllm_config: Any,
    kv_cache_config: Any,
    model: Any,
) -> None:
    """Join the pool that the settings name, before vLLM makes its connectors, and name ours in
    `vllm_config`.

    An engine whose blocks cannot be kept there (`why_not`) joins none, and logs the reason.
    `hidden` is the reason why the weights of the layers cannot be read for the fingerprint; None if
    they can.
    """
    settings, memory = worker.settings, worker.memory
    present.publish(None)
    if settings.tier_socket is None:
        return
    if why := why_not(settings, hidden, vllm_config, kv_cache_config):
        logger.warning(OFF, why)
        return
    block_bytes, _ = block_geometry(kv_cache_config)
    mark = fingerprint(vllm_config, kv_cache_config, model, settings)
    locks = memory.driver.locks_memory
    pool = join(Member(settings.tenant, mark, block_bytes, locks=locks))
    tiers = EngineTiers(memory, worker.times, pool, block_bytes)
    tiers.keep_experts(mark)
    present.publish(tiers)
    connector_module, connector = given.parted(given.CONNECTOR)
    spec_module, spec = given.parted(given.CONNECTOR_SPEC)
    vllm_config.kv_transfer_config = KVTransferConfig(
        kv_connector=connector,
        kv_connector_module_path=connector_module,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "spec_name": spec,
            "spec_module_path": spec_module,
            "offload_prompt_only": False,
        },
    )


def why_not(
    settings: EngineSettings, hidden: str | None, vllm_config: Any, kv_cache_config: Any
) -> str:
    """Return the reason why this engine's blocks cannot be kept below the device; empty if they
    can."""
    groups = kv_cache_config.kv_cache_groups
    if not settings.elastic:
        return "policy static leaves blocks to vLLM"
    if not kv_cache_config.kv_cache_tensors:
        return "there are none"
    if not vllm_config.cache_config.enable_prefix_caching:
        return "enable_prefix_caching is false, and blocks have no names without it"
    if vllm_config.model_config.is_encoder_decoder:
        return "vLLM loads none for a model with an encoder"
    if hidden:
        return f"its weights cannot be told from others: {hidden}"
    if vllm_config.speculative_config is not None:
        return "speculative_config: not tried with drafts"
    strange = {get_kv_cache_spec_kind(group.kv_cache_spec) for group in groups} - KINDS
    if strange:
        return f"the model keeps more than attention: {', '.join(sorted(k.value for k in strange))}"
    return ""


def _adapters(settings: EngineSettings) -> list[str]:
    """Return digests of the adapters' files, since hashes of blocks name only an adapter and its
    folder, which may have other files later.

    Only files that vLLM reads count. Raises `OSError`, as vLLM would.
    """
    contents = (content.of_files(folder, "adapter_*") for folder in settings.adapters)
    return [settings.tenant, *contents]


def _media(config: Any, tenant: str) -> list[Any]:
    """Return the properties that decide which tokens a picture or sound becomes, with the tenant
    whose clients name them.

    A request may give a name (`uuid`) instead of having its data hashed. Clients of two tenants may
    mean different things by one name.
    """
    media = config.multimodal_config
    options = [getattr(media, key, None) for key in ("media_io_kwargs", "mm_processor_kwargs")]
    return [tenant, options, content.of_files(Path(config.model), "*processor*.json")]


def _kernels(vllm_config: Any) -> list[Any]:
    """Return the attention kernels that write and read blocks, since each has its own layout of
    keys in a block.

    vLLM's attention on a CPU chooses by the processor's features. Torch's own capability does not
    tell these (an environment variable lowers it), and blocks on a disk stay when the processor
    changes.
    """
    backends = sorted(each.full_cls_name() for each in get_current_attn_backends(vllm_config))
    if not current_platform.is_cpu():
        return [backends]
    return [
        backends,
        torch.backends.cpu.get_cpu_capability(),
        torch.cpu._is_avx512_supported(),
        torch.cpu._is_avx512_bf16_supported(),
        torch.cpu._is_amx_tile_supported(),
    ]


def fingerprint(
    vllm_config: Any, kv_cache_config: Any, model: Any, settings: EngineSettings
) -> bytes:
    """Return the fingerprint of weights, dtype and block layout: equal for engines that can read
    the same blocks."""
    config, cache = vllm_config.model_config, vllm_config.cache_config
    said = {k: v for k, v in config.hf_config.to_dict().items() if k != "_name_or_path"}
    facts = {
        "vllm": vllm.__version__,
        "model": said,
        # By it vLLM chooses between LongRoPE's two sets of factors.
        "length": config.max_model_len,
        "dtype": [str(config.dtype), str(cache.cache_dtype)],
        "layout": [str(cache.kv_cache_layout), *block_geometry(kv_cache_config)],
        "kernels": _kernels(vllm_config),
        "groups": [
            [group.kv_cache_spec.block_size, list(group.layer_names)]
            for group in kv_cache_config.kv_cache_groups
        ],
        "adapters": _adapters(settings) if vllm_config.lora_config else None,
        "media": _media(config, settings.tenant) if config.is_multimodal_model else None,
    }
    mark = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, parameter in sorted([*model.state_dict().items(), *stack.absorbed(model)]):
        mark.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        mark.update(content.digest(parameter))
    return mark.digest()
