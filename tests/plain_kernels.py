"""Plain vLLM with the kernels that our engines have, whatever the processor.

vLLM packs matrices for oneDNN, on AMX small ones for sgl, on AMD's Zen for zentorch, and each
rounds in its own way. Our engines keep the linear ones of the layers plain; here plain vLLM does so
by the same function. All else, heads for one, is whose it is in both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def without_onednn() -> None:
    """Switch oneDNN off in this process: torch does not know of what it packs, nor can we."""
    import vllm._custom_ops as ops

    ops._supports_onednn = False
    _say("vllm._custom_ops._supports_onednn = False")


@contextmanager
def like_ours() -> Iterator[None]:
    """Context in which vLLM builds one model, and keeps of its weights plain what we would."""
    from mirage.engine import stack
    from mirage.engine.params import PlacedLayers

    def found(model: Any) -> None:
        PlacedLayers().found(model)
        kept = sum(getattr(part, "_cpu_skip_gemm_dispatch", False) for part in model.modules())
        _say(f"{kept} linear layers are kept from whatever packs on this processor")

    without_onednn()
    with stack.built(found):
        yield


def _say(what: str) -> None:
    print(f"plain kernels: {what}", file=sys.stderr)
