"""Small models of plain torch, built as vLLM builds its models, and the memory that moves them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from mirage.engine.device_memory import DeviceMemory
from mirage.engine.engine_times import EngineTimes
from mirage.engine.startup import StartUp
from tests.settings import engine_settings

WIDTH, LAYERS, VOCABULARY = 16, 4, 50


class Attention(torch.nn.Module, AttentionLayerBase):
    """Attention without KV cache, whose output is whatever its new memory contains."""

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
    """A stack of layers after an embedding."""

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
    """Layer that keeps the address of its weight, as a kernel might that was given it."""

    def __init__(self) -> None:
        super().__init__()
        self.address = self.out.weight.data_ptr()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = (ctypes.c_float * WIDTH).from_address(self.address)
        return super().forward(x) + torch.tensor(list(found))


class Runner:
    """Stand-in for vLLM's model runner, with the parts that loading needs."""

    device = torch.device("cpu")

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.model_config = model, self

    def get_model(self) -> torch.nn.Module:
        return self.model

    def get_vocab_size(self) -> int:
        return VOCABULARY

    def step(self) -> None:
        """Compute a dummy step as vLLM does, with zeros as input."""
        with torch.inference_mode():
            zeros = torch.zeros(8, dtype=torch.int64)
            self.model(input_ids=zeros, positions=zeros)


def engine(
    model: torch.nn.Module, made: type[DeviceMemory] = DeviceMemory, **settings: Any
) -> DeviceMemory:
    """Memory of an engine under policy mirage into which `model` was loaded."""
    start_up, runner = started_with(made, **settings), Runner(model)
    start_up.parameters.found(model)
    start_up.loaded(runner, runner.step, runner.step)
    assert not start_up.parameters.left, "what was kept to be poisoned is freed"
    return start_up.memory


def started_with(made: type[DeviceMemory] = DeviceMemory, **settings: Any) -> StartUp:
    """Start of an engine under policy mirage that has no model yet."""
    has = engine_settings(tenant="toy", page=4096, **settings)
    memory = made(has)
    return StartUp(memory, EngineTimes(memory))
