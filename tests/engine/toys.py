"""Small models of plain torch, built as vLLM builds its own, and what moves their layers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from mirage.config import Policy
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.engine_times import EngineTimes
from mirage.engine.settings import EngineSettings
from mirage.engine.startup import StartUp

WIDTH, LAYERS, VOCABULARY = 16, 4, 50


class Attention(torch.nn.Module, AttentionLayerBase):
    """Has no KV cache, and so gives whatever is in memory."""

    def get_attn_backend(self) -> Any:
        raise NotImplementedError

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)


class Block(torch.nn.Module):
    """One decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, WIDTH)
        self.attention = Attention()
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(self.attention(self.qkv(x)))


class Model(torch.nn.Module):
    """A stack of layers, and what lies around it."""

    def __init__(self, block: Callable[[], torch.nn.Module] = Block, layers: int = LAYERS) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(block() for _ in range(layers))

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x


class Remembering(Block):
    """Keeps the address of its weight, as a kernel might that was handed it."""

    def __init__(self) -> None:
        super().__init__()
        self.address = self.out.weight.data_ptr()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = (ctypes.c_float * WIDTH).from_address(self.address)
        return super().forward(x) + torch.tensor(list(found))


class Runner:
    """The little of vLLM's model runner that loading asks for."""

    device = torch.device("cpu")

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.model_config = model, self

    def get_model(self) -> torch.nn.Module:
        return self.model

    def get_vocab_size(self) -> int:
        return VOCABULARY

    def step(self) -> None:
        """As a dummy step of vLLM's: zeros in, result thrown away."""
        with torch.inference_mode():
            zeros = torch.zeros(8, dtype=torch.int64)
            self.model(input_ids=zeros, positions=zeros)


def engine(
    model: torch.nn.Module, made: type[DeviceMemory] = DeviceMemory, **settings: Any
) -> DeviceMemory:
    """What holds an engine's memory, `model` loaded into it; of policy mirage."""
    start_up, runner = started_with(made, **settings), Runner(model)
    start_up.parameters.found(model)
    start_up.loaded(runner, runner.step, runner.step)
    assert not start_up.parameters.left, "what was kept to be poisoned is freed"
    return start_up.memory


def started_with(made: type[DeviceMemory] = DeviceMemory, **settings: Any) -> StartUp:
    """The start of an engine that has no model yet; of policy mirage."""
    has = EngineSettings(policy=Policy.MIRAGE, tenant="toy", page=4096, base_blocks=2, **settings)
    memory = made(has)
    return StartUp(memory, EngineTimes(memory))
