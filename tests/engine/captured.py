"""Child process: capture one step of a real model in pieces, as vLLM would on a GPU.

python captured.py MODELS OUT MODE      MODE: plain or pieces

There is no GPU here, so the graphs are stand-ins that count and record nothing; what is vLLM's
own is where a capture is interrupted, and what is called again when it is replayed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1"

from tiny import LAYERS, make_llm, make_model, scheduler_of

TOKENS = 4


class NoGraph:
    """Takes the place of `torch.cuda.CUDAGraph`."""

    def capture_begin(self, **_: Any) -> None:
        """What follows is computed at once."""

    def capture_end(self) -> None:
        """Nothing was recorded."""

    def replay(self) -> None:
        """Nothing to do."""


def captured(llm: Any) -> dict[str, Any]:
    """Pieces and interruptions of one captured step, and what its replay tells the streamer."""
    from vllm.compilation import breakable_cudagraph as breakable
    from vllm.forward_context import set_forward_context

    core = llm.llm_engine.engine_core.engine_core
    worker = core.model_executor.driver_worker.worker
    with (
        mock.patch("torch.cuda.CUDAGraph", NoGraph),
        mock.patch.object(breakable, "_weak_ref_capture_arg", lambda argument: argument),
        breakable.BreakableCUDAGraphCapture() as capture,
    ):
        worker.model_runner._dummy_run(TOKENS)
    told: list[tuple[str, int]] = []
    if (streamer := scheduler_of(llm).memory.streamer) is not None:
        scheduler_of(llm).memory.move_layers(2, 1)
        for name in ("before", "after"):
            setattr(streamer, name, _noting(told, name))
    with set_forward_context(None, llm.llm_engine.vllm_config, num_tokens=TOKENS):
        capture.replay()
    return {
        "layers": LAYERS,
        "graphs": capture.num_graphs,
        "breaks": capture.num_eager_breaks,
        "told": told,
    }


def _noting(told: list[tuple[str, int]], name: str) -> Any:
    return lambda index: told.append((name, index))


if __name__ == "__main__":
    models, out, mode = sys.argv[1:]
    settings = {"policy": "mirage", "pieces": True} if mode == "pieces" else {"policy": "static"}
    made = make_llm(make_model("llama", Path(models)), mirage=settings)
    Path(out).write_text(json.dumps(captured(made)))
