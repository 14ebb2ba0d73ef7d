"""Experts that are away, with CUDA graphs and compiled steps: splits, and outputs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from children import must, spawn, spawn_anew
from vllm.config import CompilationConfig, CUDAGraphMode
from vllm.forward_context import ForwardContext, override_forward_context
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.utils.torch_utils import LayerName

from mirage.engine import expert_call
from mirage.engine.expert_call import OPERATOR, captured, runner_of, split
from mirage.engine.experts import ExpertLayer, ExpertsStay, find
from mirage.engine.params import PlacedLayers
from mirage.engine.pieces import GraphPieces

pytestmark = [pytest.mark.engine, pytest.mark.one_of("graphs")]
LAYERS = 4
CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def generated(models: Path, mode: str, family: str) -> dict[str, Any]:
    out = models / f"{mode}-{family}.json"
    if not out.exists():
        must(spawn("expert_graphs.py", models, out, mode, family))
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.drawn("family")
@pytest.mark.parametrize("family", ["mixtral", "qwen3moe", "qwen2moe"])
def test_compiled_steps_with_experts_away_say_what_vllms_say(models: Path, family: str) -> None:
    """Texts of compiled steps with experts away are vLLM's. Qwen2-MoE has shared experts too, whose
    result the operator also returns.
    """
    ours, plain = (generated(models, mode, family) for mode in ("split", "plain"))
    assert ours["rounds"] == plain["rounds"]
    assert ours["compiled"] and ours["loads"] > 100
    assert {0, 7} < set(ours["experts"]) and max(ours["remapped_counts"]) >= 1
    assert ours["replays"] > plain["replays"] > 0, "of more pieces"
    assert ours["elsewhere"] == 0, "a graph would read what its capture was given"
    outputs = ["empty_like"] * (2 if family == "qwen2moe" else 1)
    call = {"alone": True, "written_before": True, "allocated_by": outputs}
    assert ours["calls"] == [call] * LAYERS


@pytest.mark.slow
def test_behind_vllms_own_operator_a_graph_would_read_elsewhere(models: Path) -> None:
    assert generated(models, "returned", "mixtral")["elsewhere"] > 0


@pytest.mark.slow
def test_a_capture_of_steps_as_written_ends_where_experts_are_called(tmp_path: Path) -> None:
    """A step that is not compiled is captured in pieces, which end before each call of experts.
    Shared experts are outside of the capture too, because vLLM may compute them on their own
    stream.
    """
    must(spawn_anew("captured.py", tmp_path, out := tmp_path / "out.json", "experts"))
    found = json.loads(out.read_text())
    assert found["layers"] == LAYERS
    assert found["breaks"] == 2 * LAYERS and found["graphs"] == 2 * LAYERS + 1
    assert found["told"] == [["route", layer] for layer in range(LAYERS)], "as it is replayed"
    assert found["loads"] >= LAYERS


# -- where they lie --------------------------------------------------------------------------


def placed(order: tuple[int, int]) -> PlacedLayers:
    """Two layers in pieces, each with an attention, a norm and experts; `order` is that of the
    pieces.
    """
    layers = [[torch.nn.Parameter(torch.ones(4)) for _ in range(4)] for _ in range(2)]
    made = PlacedLayers(split=True)
    made.units = [[[one] for one in layer] for layer in layers]
    made.experts = [ExpertLayer(n, list(layer[2:]), None) for n, layer in enumerate(layers)]
    # Norm and experts follow attention, and what the next attention needs follows these.
    behind = [[*layers[n][1:], layers[1 - n][0]] for n in range(2)]
    made.in_pieces(GraphPieces([], [behind[n] for n in order]))
    return made


def test_experts_come_first_in_the_piece_behind_their_layers_attention() -> None:
    made = placed((0, 1))
    assert made.experts_stay is None
    for one, unit in zip(made.experts, made.units, strict=True):
        assert [tensor for storage in unit[:2] for tensor in storage] == one.weights
        assert len(unit) == 4


def test_experts_before_their_layers_attention_stay() -> None:
    made = placed((1, 0))
    assert made.experts == [] and made.expert_layout(4096) is None
    assert made.experts_stay == "they are not behind their layer's attention"


# -- what is captured ------------------------------------------------------------------------


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


def in_mode(mode: CUDAGraphMode) -> Any:
    context = ForwardContext.__new__(ForwardContext)
    context.cudagraph_runtime_mode = mode
    return override_forward_context(context)


@pytest.mark.usefixtures("capturing")
@pytest.mark.parametrize("mode", [CUDAGraphMode.FULL, CUDAGraphMode.NONE])
def test_while_a_whole_step_is_captured_nobody_looks(mode: CUDAGraphMode) -> None:
    """The routing is not read during a capture, which the stream's state tells. The mode does not:
    vLLM's second model runner captures whole steps in mode NONE, as eager steps have it.
    """
    with in_mode(mode):
        assert captured(CUDA)
    assert captured(CUDA), "without a forward context either"
    assert not captured(torch.device("cpu"))


@pytest.mark.usefixtures("capturing")
def test_a_piece_that_calls_experts_is_not_captured() -> None:
    """A piece with a call of experts must not be captured, because a replay would compute with
    experts that are away: an error is raised.
    """
    with in_mode(CUDAGraphMode.PIECEWISE), pytest.raises(RuntimeError, match="inside of a capt"):
        captured(CUDA)


def test_between_two_captures_one_may_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with in_mode(CUDAGraphMode.PIECEWISE):
        assert not captured(CUDA)


# -- what calls them -------------------------------------------------------------------------


class Otherwise(MoERunner):
    """Experts that a model calls in another way than vLLM's models do."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def layer(kind: type[MoERunner] | None) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A decoder layer and its experts; `kind` is the class of the runner that calls them."""
    experts = torch.nn.Linear(2, 2)
    if kind is None:
        return torch.nn.Sequential(experts), experts
    runner: Any = object.__new__(kind)
    torch.nn.Module.__init__(runner)
    runner.routed_experts = experts
    return torch.nn.Sequential(torch.nn.Linear(2, 2), runner), experts


def test_what_calls_experts_as_vllm_does_is_found() -> None:
    whole, experts = layer(MoERunner)
    assert runner_of(whole, experts) is whole[1]  # type: ignore[index]
    assert runner_of(whole, torch.nn.Linear(2, 2)) is None


@pytest.mark.parametrize("kind", [Otherwise, None])
def test_experts_that_are_called_otherwise_stay_where_graphs_are(
    kind: type[MoERunner] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, experts = layer(kind)
    experts.w13_weight = experts.w2_weight = experts.weight
    made = ExpertLayer(0, [], None, runner_of(whole, experts))
    monkeypatch.setattr("mirage.engine.experts._experts", lambda *_: made)
    with pytest.raises(ExpertsStay, match="graphs and compiled steps cannot stop"):
        find([whole, whole], called=True)
    assert find([whole, whole]) == [made, made], "eager steps wait anywhere"


class Doubling(MoERunner):
    """Runner whose result is twice its input for routed experts, and three times
    for shared ones.
    """

    def _forward_impl(self, hidden: Any, logits: Any, shared_input: Any, ids: Any = None) -> Any:
        return 2 * hidden if shared_input is None else (3 * shared_input, 2 * hidden)


@pytest.mark.parametrize("shared_width", [None, 3, 5])
def test_the_operator_gives_what_vllms_would(shared_width: int | None) -> None:
    """Our operator returns the results of routed experts, and those of shared ones if there are
    any, also if these see a wider input.
    """
    name, runner = LayerName("layers.0.mlp"), Doubling.__new__(Doubling)
    context = ForwardContext.__new__(ForwardContext)
    context.no_compile_layers = {name.value: runner}
    hidden, logits = torch.randn(4, 3), torch.randn(4, 2)
    wide = None if shared_width is None else torch.randn(4, shared_width)
    entry = expert_call._routed if wide is None else expert_call._shared_and_routed
    with override_forward_context(context):
        found = entry(hidden, logits, wide, None, name, 0)
    shared, routed = (None, found) if wide is None else found
    assert torch.equal(routed, 2 * hidden)
    assert wide is None or torch.equal(shared, 3 * wide)


@pytest.mark.parametrize(("there", "then"), [(["a"], ["a", OPERATOR]), (None, None)])
def test_vllm_is_told_once_where_to_split(there: list[str] | None, then: list[str] | None) -> None:
    compilation = CompilationConfig(splitting_ops=there)
    runners: list[Any] = [SimpleNamespace(shared_experts=shared) for shared in (None, object())]
    for _ in range(2):
        split(runners, compilation)
    assert compilation.splitting_ops == then
    assert [r._forward_entry for r in runners] == [
        expert_call._routed,
        expert_call._shared_and_routed,
    ]
