"""Layers of a model that move, and the parts of them that do, on small models of plain torch."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

import torch
from toys import LAYERS, WIDTH, Block, Model, engine
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

from mirage.engine.params import PlacedLayers, units
from mirage.engine.stack import find, why_stays

pytestmark = pytest.mark.engine
OF_BLOCK = 2 * (WIDTH * WIDTH + WIDTH) * 4


def moving_bytes(model: torch.nn.Module) -> list[int]:
    """Bytes of the parameters that move, for each layer."""
    return [
        sum(storage[0].untyped_storage().nbytes() for storage in unit)
        for unit in units(find(model), model)
    ]


class Encoder(torch.nn.Module):
    """Model with a small stack of layers with attention, a larger one without, and a language
    model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tower = torch.nn.ModuleList(Block() for _ in range(2))
        self.experts = torch.nn.ModuleList(torch.nn.Linear(99, 99) for _ in range(9))
        self.language = Model()


def test_the_stack_with_most_parameters_and_an_attention_moves() -> None:
    model = Encoder()
    assert find(model) == list(model.language.layers)
    assert why_stays(find(model), model) is None
    assert moving_bytes(model) == [OF_BLOCK] * LAYERS


def test_a_layer_without_attention_belongs_to_its_stack() -> None:
    model = Model()
    model.layers[1] = torch.nn.Linear(WIDTH, WIDTH)
    assert find(model) == list(model.layers)


def test_layers_are_found_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = Model()
    assert why_stays(find(model), model) is None
    assert moving_bytes(model) == [OF_BLOCK] * LAYERS


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (torch.nn.Sequential(torch.nn.Linear(2, 2)), "no stack of layers"),
        (Model(layers=1), "one layer only"),
    ],
)
def test_what_cannot_move_says_why(model: torch.nn.Module, why: str) -> None:
    assert why in (why_stays(find(model), model) or "")


def test_layers_that_are_one_and_the_same_stay() -> None:
    one = Block()
    model = Model(lambda: one)
    assert "no parameters of their own" in (why_stays(find(model), model) or "")


def test_parameters_that_layers_share_stay() -> None:
    model = Model()
    for layer in model.layers:
        layer.out = model.layers[0].out
    assert moving_bytes(model) == [OF_BLOCK // 2] * LAYERS
    memory = engine(model)
    assert memory.streamer is not None
    embed = model.embed.weight.nbytes
    assert memory.fixed_bytes == embed + OF_BLOCK // 2


def test_parameters_that_something_outside_shares_stay() -> None:
    model = Model()
    model.head = model.layers[2].qkv.weight
    assert moving_bytes(model) == [OF_BLOCK, OF_BLOCK, OF_BLOCK - WIDTH * WIDTH * 4, OF_BLOCK]
    assert engine(model).streamer is not None


class Viewing(Block):
    """Layer that reads its weight through a buffer and an attribute, as Mamba and latent attention
    do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("flat", self.qkv.weight.data.view(-1))
        self.tail = (self.qkv.weight.data[1:],)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.flat[:WIDTH] + self.tail[0][-1]


def test_views_of_a_parameter_move_with_it() -> None:
    memory = engine(model := Model(Viewing))
    assert memory.streamer is not None and memory.fixed_bytes == model.embed.weight.nbytes
    layer = model.layers[2]
    assert layer.flat.data_ptr() == layer.qkv.weight.data_ptr()
    assert torch.equal(layer.tail[0].reshape(-1), layer.flat[WIDTH:])


def test_a_parameter_that_somebody_unseen_looks_at_stays() -> None:
    model = Model()
    unseen = model.layers[1].out.weight.data
    assert moving_bytes(model)[1] == OF_BLOCK - unseen.nbytes
    memory = engine(model)
    assert memory.fixed_bytes == model.embed.weight.nbytes + unseen.nbytes


def test_plain_tensors_and_rotary_caches_count_once_as_fixed() -> None:
    model = Model()
    for layer in model.layers:
        layer.stacked = (torch.zeros(100), torch.zeros(100))
        layer.cache = model.layers[0].stacked[0]
    memory = engine(model)
    assert memory.fixed_bytes == model.embed.weight.nbytes + LAYERS * 2 * 400


@pytest.mark.parametrize("moves", [True, False])
def test_every_policy_computes_with_the_same_kernels(moves: bool) -> None:
    """Under each policy, also one whose layers do not move, linear layers keep torch's kernels.
    vLLM on a CPU would otherwise pack their weights, and then none could move.
    """
    model = Model()
    linears = [m for m in model.layers.modules() if isinstance(m, torch.nn.Linear)]
    for module in linears:
        module.quant_method = UnquantizedLinearMethod()
    parameters = PlacedLayers(moves)
    parameters.found(model)
    assert (parameters.stays is None) is moves
    assert linears and all(module._cpu_skip_gemm_dispatch for module in linears)
