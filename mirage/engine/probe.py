"""Child process of `mirage check` and `mirage serve` that asks vLLM what each tenant's engine will
be.

    python -m mirage.engine.probe DESCRIPTOR

Questions come as `mirage.processes.answering` defines them, in role `probe`: `{"tenant": name,
"elastic": bool, "argv": [...], "given": {...}, "defaults": {...}}` with the command line of the
tenant's server and, as the configuration has them, its arguments of vLLM and its values for keys
that requests leave out; these two may be absent. The answer is `{"tenant": name}` with either
`facts` or `refused`, a line for the user. vLLM parses the arguments, makes its configuration,
builds the model without memory (on torch's meta device) and groups its KV cache, as it does in the
engine. Nothing is loaded, no device memory is taken.

vLLM is imported once; then each question is answered in a fork, since much in vLLM is global.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import torch
import vllm
from vllm.config import set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.v1.attention.backends.utils import (
    get_supported_kv_cache_layouts,
    resolve_kv_cache_layout,
)
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from mirage.arguments.check import ArgumentRefused
from mirage.arguments.table import PACKED_LORA
from mirage.engine import (
    adapted,
    arguments,
    blocksizes,
    checkpoint,
    experts,
    hollow,
    kernels,
    moved,
    postload,
    request_defaults,
    stack,
    tokens,
)
from mirage.engine.fixed import fixed_bytes
from mirage.engine.kvbuffer import block_geometry
from mirage.engine.kvgroups import kv_groups
from mirage.engine.layouts import layouts_on_cpu, layouts_on_gpu
from mirage.engine.params import PlacedLayers
from mirage.facts import NO_KV, ModelFacts
from mirage.problems import one_line
from mirage.processes import answering

ENOUGH_BYTES = 1 << 50
"""Bytes of KV memory that are assumed, ample for any model: `mirage.serve.fit.fit` checks the
shares."""
GENERATION = "generation_config.json"
LIMIT_S = 120.0
"""Longest time in seconds for one question, so that one model does not block the others."""
NO_PREFIXES = (
    "engine_args.enable_prefix_caching: this model has no KV cache, in which prefixes would "
    "stay: leave it out"
)


class TenantRefused(Exception):
    """Error: a tenant cannot be served; the message is one line for the user."""


def answer(question: dict[str, Any], device: str) -> dict[str, Any]:
    """Return the tenant's `facts` or `refused`; empty if the model must be built on the other of
    `DEVICES`.

    Raises nothing that a model or an argument can cause.
    """
    try:
        facts = ask(question, device)
    except hollow.NeedsNumbers:
        return {}
    except (TenantRefused, ArgumentRefused) as error:
        return {"tenant": question["tenant"], "refused": one_line(str(error))}
    except Exception as error:
        reason = one_line(f"vLLM refuses it: {_words(error)}")
        return {"tenant": question["tenant"], "refused": reason}
    return {"tenant": question["tenant"], "facts": msgspec.to_builtins(facts)}


def ask(question: Mapping[str, Any], device: str) -> ModelFacts:
    """Return the facts behind one server's command line. An elastic engine gets a KV layout that
    can grow. Raise `TenantRefused`, or what vLLM raises."""
    args, elastic = arguments.parse(question["argv"]), question["elastic"]
    if reason := arguments.misfit(question.get("given", {}), args):
        raise TenantRefused(reason)
    if reason := request_defaults.refusal(question.get("defaults", {})):
        raise TenantRefused(reason)
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    if reason := arguments.verify(config) or _no_generation_config(config.model_config):
        raise TenantRefused(reason)
    with set_current_vllm_config(config):
        hollow.alone()
        parameters = PlacedLayers(split=_split(config))
        models = hollow.built(config, lambda model: _built(config, model, parameters), device)
        if reason := _cached_states(config, models[0]) or kernels.missing(models[0]):
            raise TenantRefused(reason)
        if reason := adapted.refusal(config, models[0], args.lora_modules or ()):
            raise TenantRefused(reason)
        if reason := tokens.refusal(config, models[0], args.chat_template):
            raise TenantRefused(reason)
        current_platform.update_block_size_for_backend(config)
        specs = _kv_specs(config)
        if not specs and config.cache_config.enable_prefix_caching:
            raise TenantRefused(NO_PREFIXES)
        _resolve_layout(config, specs, elastic=elastic)
        plan = moved.kv_cache_config(config, specs, ENOUGH_BYTES) if specs else None
        if plan is not None and (reason := blocksizes.unread(config, plan)):
            raise TenantRefused(reason)
    for model in models:
        postload.apply(model, config.model_config.dtype)
    parameters.loaded(models[0])
    packed = (parameters.stays or "").startswith(stack.PACKED.split(" (")[0])
    if packed and config.lora_config is not None:
        raise TenantRefused(PACKED_LORA)
    # What cannot be built without memory was built on the CPU, for a GPU too.
    devices = (device, config.device_config.device_type)
    block_bytes, runs = block_geometry(plan) if plan is not None else (0, 1)
    return ModelFacts(
        architecture=config.model_config.architecture,
        quantisation=config.model_config.quantization or "",
        runner=config.model_config.runner_type,
        layers=len(parameters.layers),
        layer_bytes=parameters.layer_bytes(page_bytes=1),
        fixed_bytes=fixed_bytes(models, parameters.moving(), *devices),
        stays=parameters.stays,
        block_bytes=block_bytes,
        block_runs=runs,
        kv=kv_groups(config, plan.kv_cache_groups) if plan is not None else NO_KV,
        vllm=vllm.__version__,
        experts=experts.facts(parameters.experts) if parameters.experts else None,
        experts_stay=parameters.experts_stay,
    )


def _split(config: Any) -> bool:
    """True if steps run as graphs or compiled, and have to be split where they wait for
    parameters."""
    return bool((config.additional_config or {}).get("mirage", {}).get("pieces", False))


def _built(config: Any, model: torch.nn.Module, parameters: PlacedLayers) -> None:
    """Check and note `model` as vLLM built it. Raise `TenantRefused` if its files do not fit."""
    if reason := checkpoint.refusal(config, model):
        raise TenantRefused(reason)
    parameters.found(model)


def _no_generation_config(model: Any) -> str | None:
    """Return the reason if the folder named for sampling defaults has none: vLLM looks for them
    only when it is ready."""
    folder = model.generation_config
    if folder in ("auto", "vllm") or (Path(folder) / GENERATION).is_file():
        return None
    return f"engine_args.generation_config: no {GENERATION} in {folder}: correct the path"


def _cached_states(config: Any, model: torch.nn.Module) -> str | None:
    """Return the reason why prefixes must not be cached; None if they may.

    vLLM's Mamba2 on a CPU has only the last state of a prefill, and reads a wrong one, or beyond
    the end, if it needs an earlier one.
    """
    caches = current_platform.is_cpu() and config.cache_config.enable_prefix_caching
    if not caches or not any(isinstance(part, MambaMixer2) for part in model.modules()):
        return None
    return (
        "engine_args.enable_prefix_caching: on a CPU vLLM cannot cache prefixes of a model with "
        "Mamba2 layers: set it to false"
    )


def _kv_specs(config: Any) -> dict[str, Any]:
    """Return the KV cache specs as vLLM's model runner does, which needs only these two
    attributes."""
    runner = type("Asked", (), {"vllm_config": config, "shared_kv_cache_layers": {}})()
    return dict(GPUModelRunner.get_kv_cache_spec(runner))


def _resolve_layout(config: Any, specs: dict[str, Any], *, elastic: bool) -> None:
    """Note in `config` the KV layout that the engine will have: one that can grow if it is
    `elastic`."""
    backends = get_current_attn_backends(config)
    names = [layout.name for layout in get_supported_kv_cache_layouts(backends)]
    if specs and not current_platform.is_cpu():
        names = layouts_on_gpu(names, elastic=elastic)
    elif elastic and specs:
        names = layouts_on_cpu(names, mla=config.model_config.use_mla)
    resolve_kv_cache_layout(config, [names], list(specs.values()))


def _words(error: Exception) -> str:
    """Return the message of an error of vLLM, or of pydantic for vLLM."""
    errors: Callable[[], list[dict[str, Any]]] | None = getattr(error, "errors", None)
    words = errors()[0]["msg"] if callable(errors) and errors() else str(error)
    return words.removeprefix("Value error, ").strip() or type(error).__name__


def _forked(question: dict[str, Any], device: str) -> dict[str, Any]:
    """Call `answer` in a forked process, which may die, and is killed after `LIMIT_S` seconds: both
    count as a refusal."""
    context = get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=lambda: there.send(answer(question, device)))
    child.start()
    there.close()
    try:
        if here.poll(LIMIT_S):
            return dict(here.recv())
        child.kill()
        reason = f"vLLM looked at this model for {LIMIT_S:g} s and gave no answer: see its folder"
        return {"tenant": question["tenant"], "refused": reason}
    except EOFError:
        child.join()
        reason = f"vLLM ended with exit code {child.exitcode} when it was asked about this model"
        return {"tenant": question["tenant"], "refused": reason}
    finally:
        child.join()


def said(question: dict[str, Any]) -> dict[str, Any]:
    """Return vLLM's answer to a question, as `answer` does, from a process that ends afterwards."""
    # So models may be looked at here, without one more child each.
    registry._run_in_subprocess = lambda fn: fn()
    arguments.server_parser()  # made once, for all children
    return next(filter(None, (_forked(question, device) for device in hollow.DEVICES)))


if __name__ == "__main__":
    answering.answer({"probe": said})
