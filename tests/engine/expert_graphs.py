"""Child process: a mixture generates in compiled steps whose pieces are as strict as CUDA graphs.

python expert_graphs.py MODELS OUT MODE FAMILY

MODE: `plain` is vLLM as it compiles for a GPU. In `split` experts leave and come back, and are
called between the pieces. In `returned` the pieces are split at vLLM's own operator instead, which
returns a tensor.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["VLLM_DISABLE_COMPILE_CACHE"] = "1"

import torch
from expert_run import OURS, ExpertChanges, make_mixture
from identity import UNIVERSE
from strict_pieces import Graph, strict
from tiny import POISONING, make_llm, prompts, run, scheduler_of
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

from mirage.engine import expert_call
from mirage.engine.expert_call import OPERATOR

STEPS: dict[str, Any] = {
    "dtype": "float32",
    "max_num_batched_tokens": 1024,
    "enforce_eager": False,
    "compilation_config": {"mode": 3},
    "enable_prefix_caching": False,  # batches of later rounds would be others
}
SPLIT: dict[str, Any] = {
    "mirage": OURS | {"pieces": True, "compiled": True},
    "worker_cls": POISONING,
}


def theirs(runner: Any) -> Any:
    """vLLM's operator for experts, which vLLM does not register on a host."""
    operators = torch.ops.vllm
    shared = runner.shared_experts is not None
    return operators.moe_forward_shared if shared else operators.moe_forward


def split_at_theirs(runners: Any, compilation: Any) -> None:
    """Replacement of `expert_call.split` that splits steps at vLLM's operator."""
    for runner in runners:
        runner._forward_entry = theirs(runner)
    compilation.splitting_ops += ["vllm::moe_forward", "vllm::moe_forward_shared"]


def main(models: str, out: str, mode: str, family: str) -> None:
    path = make_mixture(family, Path(models))
    ours = {} if mode == "plain" else SPLIT
    instead = split_at_theirs if mode == "returned" else expert_call.split
    with (
        strict(OPERATOR) as calls,
        mock.patch.object(MoERunner, "_select_forward", theirs),
        mock.patch("mirage.engine.params.split", instead),
    ):
        llm = make_llm(path, blocks=UNIVERSE, **STEPS, **ours)
    scheduler = scheduler_of(llm)
    changes = ExpertChanges(scheduler, len(family)) if mode == "split" else lambda step: None
    Graph.capturing = True
    rounds = [run(llm, prompts(6, 40, seed), 40, changes) for seed in (1, 2)]
    facts = {
        "rounds": rounds,
        "replays": Graph.replays,
        "elsewhere": Graph.elsewhere,
        "calls": [call._asdict() for call in calls],
    }
    if mode == "split":
        facts |= {
            "compiled": scheduler.worker.memory.compiled,
            "experts": sorted(set(changes.experts)),
            "remapped_counts": sorted(changes.remapped_counts),
            "loads": scheduler.report().expert_loads,
        }
    llm.llm_engine.engine_core.shutdown()
    Path(out).write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
