"""Bytes of a model that is built without memory, against those of vLLM's model with memory."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

import tiny  # noqa: F401  # its environment counts while vLLM is imported
import torch
from toys import LAYERS, Block, Model, engine
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from mirage.engine import packing, postload, stack
from mirage.engine.fixed import fixed_bytes
from tests import kinds

pytestmark = pytest.mark.engine

ROWS, COLUMNS = 64, 96


def head(rows: int, device: str) -> Any:
    """Output head of a model in bfloat16, with a bias."""
    made: Any = torch.nn.Module()
    for name, shape in (("weight", (rows, COLUMNS)), ("bias", (rows,))):
        values = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        made.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))
    made.quant_method = UnquantizedEmbeddingMethod()
    return made


@pytest.mark.parametrize("rows", [8, 24, ROWS, 8192])
@pytest.mark.parametrize("processor", kinds.ORDER)
def test_a_head_is_said_to_hold_what_it_holds_when_it_is_loaded(
    processor: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kinds.runs_here(processor):
        pytest.skip(f"vLLM cannot pack as on {processor} here")
    kinds.become(processor, monkeypatch.setattr)
    # Its copies lie in memory that torch does not know of, but for a handle of eight bytes.
    monkeypatch.setattr(utils.ops, "_supports_onednn", False)
    loaded, said = head(rows, "cpu"), head(rows, "meta")
    loaded.quant_method.process_weights_after_loading(loaded)
    packing.apply(said, torch.bfloat16)
    assert fixed_bytes([said], set(), "cpu") == fixed_bytes([loaded], set(), "cpu")
    plain = fixed_bytes([head(rows, "meta")], set())
    packed = processor == "amx" and rows in (8, ROWS)
    assert (fixed_bytes([said], set(), "cpu") > plain) == packed


class Wrapped(torch.nn.Module):
    """Head with an adapter, whose attributes are those of the head within."""

    def __init__(self, within: Any) -> None:
        super().__init__()
        self.within = within

    @property
    def weight(self) -> torch.Tensor:
        return self.within.weight

    @property
    def quant_method(self) -> Any:
        return self.within.quant_method


def test_what_stands_for_another_holds_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    if not kinds.runs_here("amx"):
        pytest.skip("vLLM cannot pack as on amx here")
    kinds.become("amx", monkeypatch.setattr)
    packing.apply(alone := head(ROWS, "meta"), torch.bfloat16)
    packing.apply(wrapped := Wrapped(head(ROWS, "meta")), torch.bfloat16)
    assert fixed_bytes([wrapped], set(), "cpu") == fixed_bytes([alone], set(), "cpu")


class Impl:
    """Stand-in for vLLM's `AttentionImpl`: a plain object that has the packed projection of a
    layer.
    """

    packed: torch.Tensor


Impl.__module__ = "vllm.impl"  # tensors of objects from vLLM's modules are counted


class Absorbing(Block):
    """Layer that packs a projection into tensors of its own when it is loaded, as attention does on
    AMX.
    """

    is_amx_bmm_enabled = True

    def __init__(self) -> None:
        super().__init__()
        self.kv_b_proj = torch.nn.Linear(4, 4, bias=False)
        self.impl = Impl()

    def load(self) -> None:
        self.impl.packed = self.kv_b_proj.weight.detach().clone()
        self.kv_b_proj.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)


def test_layers_move_though_attention_has_packed_a_projection() -> None:
    model = Model(Absorbing)
    sizes = stack.MatrixSizes(model.layers)
    for layer in model.layers:
        layer.load()
    assert sizes.emptied() is None
    model.layers[1].out.weight = torch.nn.Parameter(torch.empty(0))
    assert sizes.emptied() == "out"


def test_what_attention_has_packed_counts_as_fixed() -> None:
    model = Model(Absorbing)
    for layer in model.layers:
        layer.load()
    memory = engine(model)
    assert memory.streamer is not None
    assert (
        memory.fixed_bytes
        == model.embed.weight.nbytes + LAYERS * model.layers[0].impl.packed.nbytes
    )


def test_scales_of_a_kv_cache_are_let_go_as_vllm_does() -> None:
    attention: Any = torch.nn.Module()
    attention.quant_method = BaseKVCacheMethod(None)
    for name in postload.SCALES:
        attention.register_parameter(name, torch.nn.Parameter(torch.ones(1), requires_grad=False))
    attention.register_buffer("_k_scale", torch.ones(1))
    postload.apply(attention, torch.bfloat16)
    assert not dict(attention.named_parameters()) and attention._k_scale.numel() == 1
