"""Parameters between two attentions (pieces), on toy models; and vLLM's own capture in pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from children import must, spawn_anew

from mirage.engine import startup
from mirage.engine.params import PlacedLayers
from mirage.engine.pieces import GraphPieces, UnknownPieces, watched

pytestmark = pytest.mark.engine
COUNT = 3


class Attention(torch.nn.Module):
    """Attention module that calls its `impl`, as vLLM's does."""

    def __init__(self) -> None:
        super().__init__()
        self.impl = SimpleNamespace(forward=lambda x: x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.impl.forward(x)


class Block(torch.nn.Module):
    """Layer whose modules are registered in another order than they compute."""

    def __init__(self) -> None:
        super().__init__()
        self.after = torch.nn.Linear(2, 2, bias=False)
        self.before = torch.nn.Linear(2, 2)
        self.attention = Attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.attention(self.before(x)))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(COUNT)])

    def forward(self) -> torch.Tensor:
        x = torch.ones(1, 2)
        for block in self.blocks:
            x = block(x)
        return x


def test_whatever_stands_in_the_way_whole_layers_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> GraphPieces:
        raise AssertionError("Current vLLM config is not set")

    monkeypatch.setattr(startup, "watched", fails)
    start_up = startup.StartUp.__new__(startup.StartUp)
    start_up.parameters = PlacedLayers()
    start_up.memory = SimpleNamespace(pieces=False)  # type: ignore[assignment]
    start_up._find_pieces(lambda: None)
    assert not start_up.memory.pieces
    assert "whole layers stream" in caplog.text
    assert "AssertionError: Current vLLM config is not set" in caplog.text


class Otherwise(Attention):
    """Attention module that calls something else of its `impl` than `forward`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("otherwise", [{0}, {2}, {0, 1, 2}])
def test_an_attention_that_is_computed_otherwise_is_no_border(otherwise: set[int]) -> None:
    model = Model()
    for index in otherwise:
        model.blocks[index].attention = Otherwise()
    with pytest.raises(UnknownPieces, match="attention"):
        watched(list(model.blocks), model)


def ordered(count: int) -> list[tuple[str, int]]:
    """Calls to a streamer in one step of `count` pieces: after the last piece, before the next."""
    steps = [[("after", (i - 1) % count), ("before", i)] for i in range(count)]
    return [told for step in steps for told in step]


def seen(model: Model, step: Callable[[], Any] | None = None) -> GraphPieces:
    return watched(list(model.blocks), step or model.forward)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_last_piece_goes_on_with_the_next_step(steps: int) -> None:
    model = Model()
    pieces = seen(model, lambda: [model() for _ in range(steps)])
    names = {id(p): name for name, p in model.named_parameters()}
    assert [{names[id(p)] for p in unit} for unit in pieces.parameters] == [
        {f"blocks.{i}.after.weight"}
        | {f"blocks.{(i + 1) % COUNT}.before.{part}" for part in ("weight", "bias")}
        for i in range(COUNT)
    ]


def test_watching_leaves_no_trace() -> None:
    model = Model()

    def clean() -> bool:
        hooks = any(module._forward_pre_hooks for module in model.modules())
        return not hooks and [b.attention.impl.forward for b in model.blocks] == before

    before = [block.attention.impl.forward for block in model.blocks]
    seen(model)
    assert clean()
    with pytest.raises(ZeroDivisionError):
        seen(model, lambda: 1 // 0)
    assert clean()


def test_a_parameter_that_no_forward_tells_of_is_named() -> None:
    model = Model()
    model.blocks[1].attention.scale = torch.nn.ParameterDict({"of": torch.ones(1)})
    with pytest.raises(UnknownPieces, match="of of layer 1 is not seen in use"):
        seen(model)


def test_a_module_that_uses_its_parts_without_calling_them_needs_them_all() -> None:
    """A module reads parameters of its submodules without calling these, as experts are used. All
    its parameters belong to its piece.
    """
    model = Model()

    class Experts(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2, bias=False)
            self.one = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2))])
            self.other = torch.nn.Linear(2, 2, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.one[0] + x @ self.other.weight

    model.blocks[1].after = Experts()
    pieces = seen(model)
    assert {id(p) for p in model.blocks[1].after.parameters()} <= {
        id(p) for p in pieces.parameters[1]
    }


def test_a_parameter_that_two_pieces_need_is_named() -> None:
    model = Model()
    model.blocks[2].before = model.blocks[1].before
    with pytest.raises(UnknownPieces, match=r"layer 1 is needed by pieces \[0, 1\]"):
        seen(model)


@pytest.mark.parametrize("attentions", [0, 2])
def test_layers_without_one_attention_each_are_named(attentions: int) -> None:
    model = Model()
    del model.blocks[1].attention
    model.blocks[1].several = torch.nn.ModuleList([Attention() for _ in range(attentions)])
    with pytest.raises(UnknownPieces, match=f"layer 1 has {attentions} attentions"):
        seen(model)


def test_attentions_out_of_order_are_named() -> None:
    model = Model()
    with pytest.raises(UnknownPieces, match="attention 2 follows attention 0"):
        seen(model, lambda: [model.blocks[i](torch.ones(1, 2)) for i in (0, 2, 1)])


class Calls:
    """Stand-in for the streamer, which records its calls."""

    layers = range(COUNT)

    def __init__(self, streaming: bool) -> None:
        self.streaming, self.told = streaming, []

    def before(self, index: int) -> None:
        self.told.append(("before", index))

    def after(self, index: int) -> None:
        self.told.append(("after", index))


@pytest.mark.parametrize("streaming", [True, False])
def test_a_piece_begins_after_its_attention_and_ends_at_the_next(streaming: bool) -> None:
    model, calls = Model(), Calls(streaming)
    expected = model()
    pieces = seen(model)
    pieces.order(calls)  # type: ignore[arg-type]
    assert torch.equal(model(), expected)
    assert calls.told == (ordered(COUNT) if streaming else [])


@pytest.mark.rare
def test_vllm_captures_no_more_pieces_than_without_us(tmp_path: Path) -> None:
    """A real model is captured in pieces over stand-ins for graphs. vLLM makes as many graphs as
    without our hooks, and a replay calls the streamer for each piece in order.
    """
    found = {}
    for mode in ("plain", "pieces"):
        out = tmp_path / f"{mode}.json"
        must(spawn_anew("captured.py", tmp_path, out, mode))
        found[mode] = json.loads(out.read_text())
    assert found["pieces"]["graphs"] == found["plain"]["graphs"] == found["pieces"]["layers"] + 1
    assert found["pieces"]["breaks"] == found["plain"]["breaks"] == found["pieces"]["layers"]
    told = [(what, index) for what, index in found["pieces"]["told"]]
    assert told == ordered(found["pieces"]["layers"]), "replayed while layers stream"
