"""Child process: capture one step of a real model in pieces, as vLLM would on a GPU.

python captured.py MODELS OUT MODE      MODE: plain, pieces, or experts of a mixture

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

import torch
from expert_run import make_mixture
from tiny import make_llm, make_model, scheduler_of

TOKENS = 4


class NoGraph:
    """Stand-in for `torch.cuda.CUDAGraph`, which records nothing."""

    def capture_begin(self, **_: Any) -> None:
        """Do nothing. Without a GPU the operations that follow run at once and are not recorded."""

    def capture_end(self) -> None:
        """Do nothing, because nothing was recorded."""

    def replay(self) -> None:
        """Do nothing."""


def captured(llm: Any) -> dict[str, Any]:
    """Graphs and interruptions of one captured step, and the streamer's calls when
    it is replayed.
    """
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
    memory = scheduler_of(llm).worker.memory
    if (giver := memory.giver) is not None:
        memory.move_layers(0, 0, giver.layout.most)
        route = giver.residency.route
        giver.residency.route = lambda layer, used: (
            told.append(("route", layer)) or route(layer, used)
        )
    elif (streamer := memory.streamer) is not None:
        memory.move_layers(2, 1)
        for name in ("before", "after"):
            setattr(streamer, name, _noting(told, name))
    config = llm.llm_engine.vllm_config
    with torch.inference_mode(), set_forward_context(None, config, num_tokens=TOKENS):
        capture.replay()
    return {
        "layers": memory.layers,
        "loads": giver.residency.loads if giver is not None else 0,
        "graphs": capture.num_graphs,
        "breaks": capture.num_eager_breaks,
        "told": told,
    }


def _noting(told: list[tuple[str, int]], name: str) -> Any:
    return lambda index: told.append((name, index))


if __name__ == "__main__":
    models, out, mode = sys.argv[1:]
    settings: dict[str, dict[str, Any]] = {
        "plain": {"policy": "static"},
        "pieces": {"policy": "mirage", "pieces": True},
        "experts": {"policy": "mirage", "pieces": True, "experts": True},
    }
    make = make_mixture if mode == "experts" else make_model
    family = "qwen2moe" if mode == "experts" else "llama"
    made = make_llm(make(family, Path(models)), mirage=settings[mode])
    Path(out).write_text(json.dumps(captured(made)))
