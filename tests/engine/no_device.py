"""Our scheduler over vLLM's own, without a device: its steps compute nothing."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from test_probe import question
from tiny import make_model
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.structured_output import StructuredOutputManager

from mirage.control.reporting import LayerTimes
from mirage.engine import arguments, runtime, scheduler
from mirage.engine.mailbox import Mailbox
from mirage.engine.memory_worker import MeasuredSteps
from mirage.facts import KVGroups
from mirage.protocol import Hello, ModelShape
from tests.settings import engine_settings

BLOCKS = 64
SHAPE = ModelShape(2, 1, 1, 1, 1, 32, 64, 1, 0)


class MemoryWorker:
    """Stand-in for our worker: the calls that a scheduler of policy static makes, without a device
    or measurements.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = engine_settings(
            policy="static", tenant="a", control="socket", base_blocks=BLOCKS, **settings
        )
        self.mailbox, self.tasks, self.planned = Mailbox(), ("generate",), False
        self.warm = True

    def shape(self, config: Any, groups: KVGroups) -> ModelShape:
        return SHAPE

    def memory_info(self) -> tuple[int, int]:
        return 0, 0

    def times_steps(self, of_requests: bool) -> None:
        self.warm = of_requests

    def measured(self) -> MeasuredSteps:
        return MeasuredSteps(0, 0.0, {}, LayerTimes(0.0, 0.0))


class Agent:
    """Stand-in for the engine's agent, which records the engine's messages."""

    def __init__(self, path: str, mailbox: Mailbox) -> None:
        self.said: list[Any] = []
        self.heard = -inf

    def last_heard(self) -> float:
        return self.heard

    def start(self, hello: Hello, *_: Any) -> None:
        self.said.append(hello)

    def send(self, message: Any) -> None:
        self.said.append(message)


def made(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    """A new scheduler of ours as in an engine's core, whose worker has no device memory."""
    monkeypatch.setattr(runtime, "_worker", MemoryWorker(**settings))
    monkeypatch.setattr(scheduler, "Agent", Agent)
    asked = question("a", make_model("llama", folder), skip_tokenizer_init=True)
    args = arguments.parse(asked["argv"])
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    config.cache_config.num_gpu_blocks = BLOCKS
    spec = FullAttentionSpec(block_size=32, num_kv_heads=1, head_size=32, dtype=torch.bfloat16)
    plan = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])
    return scheduler.make_scheduler(
        config,
        kv_cache_config=plan,
        structured_output_manager=StructuredOutputManager(config),
        block_size=32,
        hash_block_size=32,
        log_stats=True,
    )


def computed(core: Any, output: Any) -> dict[int, Any]:
    """Hand vLLM the output of a step, in which each request that has to answer gets token 7."""
    names = list(output.num_scheduled_tokens)
    index = {name: number for number, name in enumerate(names)}
    said = ModelRunnerOutput(names, index, sampled_token_ids=[[7] for _ in names])
    return dict(core.update_from_output(output, said))


def step(core: Any) -> dict[int, Any]:
    """Schedule one step, and answer it with token 7."""
    return computed(core, core.schedule())
