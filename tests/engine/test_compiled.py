"""Compiled steps with streamed layers: what may be compiled, and what the proof finds."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from children import must, spawn

pytest.importorskip("vllm")

from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper

from mirage.engine.compiled import NotHashed, compiling, eagerly, stay_eager
from mirage.engine.proof import NoForward, between
from mirage.engine.startup import StartUp
from vmm.driver import GrantExceeded

pytestmark = [pytest.mark.engine, pytest.mark.one_of("graphs")]
COUNT, WIDTH = 3, 4


class Part(torch.nn.Module, TorchCompileWithNoGuardsWrapper):
    """Module decorated as vLLM does: it is compiled unless `do_not_compile`."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.do_not_compile = False


class Impl:
    def forward(self, layer: Any, q: Any, k: Any, v: Any, cache: Any, *, output: Any) -> Any:
        return output.zero_()


class Model(torch.nn.Module):
    """Model that calls attention through vLLM's objects, not through its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()
        self.weights = [torch.randn(WIDTH, WIDTH) for _ in range(COUNT)]
        self.impls = [Impl() for _ in range(COUNT)]

    def forward(self, *, input_ids: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.one_hot(input_ids, WIDTH).float()
        for weight, impl in zip(self.weights, self.impls, strict=True):
            x = x @ weight
            output = torch.empty_like(x)
            impl.forward(None, x, x, x, None, output=output)
            x = x + output
        return x


def seen_of(model: Model) -> Any:
    step = partial(model, input_ids=torch.zeros(2, dtype=torch.long))
    return between(model.impls, model, step, WIDTH)


def test_what_every_attention_is_given_and_the_output_are_seen() -> None:
    model = Model()
    first, second = seen_of(model), seen_of(model)
    assert len(first.outputs) == 3 * COUNT + 1 and first.outputs == second.outputs
    assert all("forward" not in vars(impl) for impl in model.impls), "let go again"
    for index in range(COUNT):
        kept, model.weights[index] = model.weights[index], torch.zeros(WIDTH, WIDTH)
        pairs = zip(first.outputs, seen_of(model).outputs, strict=True)
        differing = {name for (name, before), (_, after) in pairs if before != after}
        assert f"what comes before attention {index}" in differing
        assert f"what comes before attention {index - 1}" not in differing
        model.weights[index] = kept


def test_a_model_that_is_fed_nothing_proves_nothing() -> None:
    model = Model()
    with pytest.raises(NoForward):
        between(model.impls, model, lambda: None, WIDTH)


def test_a_model_is_compiled_or_not() -> None:
    model = Model()
    assert compiling(model) == [model.part]
    with eagerly(model):
        assert compiling(model) == []
    assert compiling(model) == [model.part]
    stay_eager(model)
    assert compiling(model) == []
    with eagerly(model):
        pass
    assert compiling(model) == [], "it stays so"


def start_up(model: Model, streamer: Any) -> StartUp:
    made = StartUp.__new__(StartUp)
    made.settings = SimpleNamespace(tenant="one")  # type: ignore[assignment]
    made.memory = SimpleNamespace(  # type: ignore[assignment]
        streamer=streamer, giver=None, compiled=False, begin_step=lambda: None
    )
    made.parameters = SimpleNamespace(  # type: ignore[assignment]
        pieces=SimpleNamespace(attentions=model.impls)
    )
    return made


class Streamer:
    """Stand-in for a streamer, with the calls that a proof makes. If it `spoils`, a weight changes
    as if a slot had another layer.
    """

    def __init__(self, model: Model, spoils: bool, given: tuple[int, int] = (0, 0)) -> None:
        """`given`: layers given away and slots of an engine that has memory for no more."""
        self.layers = list(range(COUNT))
        self.layers_remapped, self.stream_slots = self._given = given
        self.bytes_streamed = 0
        self.streaming = False
        self._model, self._spoils = model, spoils

    def set(self, layers_remapped: int, stream_slots: int) -> None:
        if layers_remapped < self._given[0]:
            raise GrantExceeded("no memory for more layers")
        first = self._given[0]
        if self._spoils and (layers_remapped > first) != (self.layers_remapped > first):
            self._model.weights[1] = -self._model.weights[1]
        self.layers_remapped, self.stream_slots = layers_remapped, stream_slots


@pytest.mark.parametrize("given", [(0, 0), (1, 2)])
@pytest.mark.parametrize("spoils", [False, True])
def test_what_is_not_proven_is_not_compiled(
    spoils: bool, given: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    model = Model()
    made = start_up(model, Streamer(model, spoils, given))
    runner = SimpleNamespace(
        get_model=lambda: model, model_config=SimpleNamespace(get_vocab_size=lambda: WIDTH)
    )
    step = partial(model, input_ids=torch.zeros(2, dtype=torch.long))
    made.prove_compiled(runner, step)
    assert made.memory.compiled is not spoils
    assert compiling(model) == ([] if spoils else [model.part])
    assert ("no step is compiled: tenant 'one'" in caplog.text) is spoils
    streamer = made.memory.streamer
    assert streamer is not None
    assert (streamer.layers_remapped, streamer.stream_slots) == given


@pytest.mark.slow
@pytest.mark.drawn("family")
@pytest.mark.parametrize("family", ["mixtral", "gemma2"])
def test_compiled_or_found_out_the_texts_stay_while_memory_moves(
    family: str, tmp_path: Path
) -> None:
    """Texts are the same at rest and while layers move. For Gemma 2 the compiler reads a weight
    before its layer is awaited: the proof finds this, and the engine computes without compilation.
    """
    out = tmp_path / "out.json"
    must(spawn("compiled_run.py", tmp_path / "models", out, family))
    found = json.loads(out.read_text())
    rest, *moved = found["rounds"]
    assert all(one == rest for one in moved)
    assert len(found["remapped_counts"]) > 3 and found["bytes_streamed"] > 0
    assert found["compiled"] or family == "gemma2"


def test_our_settings_are_no_reason_to_compile_anew() -> None:
    one, other = (NotHashed({"mirage": {"grant_bytes": n}}) for n in (1, 2))
    assert one.compute_hash() == other.compute_hash()
    assert one.get("mirage") == {"grant_bytes": 1}
    assert json.dumps(dict(one)) and not isinstance(one, dict)
