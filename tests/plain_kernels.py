"""Plain vLLM with the kernels that our engines use, on any processor.

vLLM packs matrices for oneDNN, small ones on AMX for sgl, and on AMD's Zen for zentorch; each of
these rounds in its own way. Our engines keep the linear layers that move from being packed for
oneDNN, and here plain vLLM does so by the same function. A kernel of sgl rounds batches of up to
four rows in another way than larger ones, so plain vLLM computes the same batches as well. All
else, such as output heads, is the same in both anyway.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


def without_onednn() -> None:
    """Switch oneDNN off in this process, because neither torch nor we can see what oneDNN has
    packed.
    """
    import vllm._custom_ops as ops

    ops._supports_onednn = False
    _say("vllm._custom_ops._supports_onednn = False")


@contextmanager
def layers_like_ours() -> Iterator[None]:
    """Context in which vLLM builds a model and gives its layers the kernels of our engines."""
    from mirage.engine import stack
    from mirage.engine.params import PlacedLayers

    def found(model: Any) -> None:
        PlacedLayers().found(model)
        kept = sum(getattr(part, "_cpu_skip_gemm_dispatch", False) for part in model.modules())
        _say(f"{kept} linear layers are kept from whatever packs on this processor")

    with stack.built(found):
        yield


@contextmanager
def blocks_like_ours() -> Iterator[None]:
    """Context in which a model whose layers have KV blocks of several sizes gets our layout.

    In its own layout vLLM makes them equal: the small ones hold more tokens. It then finds shorter
    prefixes in its cache, and computes other batches.
    """
    from vllm.v1.worker.cpu_worker import CPUWorker

    from mirage.engine.layouts import layouts_on_cpu

    own = CPUWorker.get_supported_kv_cache_layouts

    def layouts(worker: Any) -> list[str]:
        declared: list[str] = own(worker)
        sizes = {spec.page_size_bytes for spec in worker.get_kv_cache_spec().values()}
        if len(sizes) < 2:
            return declared
        return layouts_on_cpu(declared, mla=worker.model_config.use_mla)

    with mock.patch.object(CPUWorker, "get_supported_kv_cache_layouts", layouts):
        yield


@contextmanager
def like_ours() -> Iterator[None]:
    """Both contexts, without oneDNN, which would pack output heads."""
    without_onednn()
    with layers_like_ours(), blocks_like_ours():
        yield


def _say(what: str) -> None:
    print(f"plain kernels: {what}", file=sys.stderr)
