"""A model that computes something else after its layers have moved does not become ready."""

from __future__ import annotations

import ctypes
import logging
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import torch
from children import must, spawn
from tiny import make_model
from toys import LAYERS, WIDTH, Block, Model, Remembering, Runner, engine, started_with
from unusual import OFFSET, SYMMETRIC

from mirage.engine.cpu_worker import MirageCPUWorker
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.elastic_worker import _dummy_step
from mirage.engine.params import PlacedLayers
from mirage.engine.proof import TOKENS, NoForward, Proof, Seen, UnsupportedModel
from tests import kinds
from tests.tampered.memory import Unawaited

pytestmark = pytest.mark.engine
MANY_TOKENS = 512
"""Tokens of the larger proof, as on a GPU, whose worker cannot be imported beside a host's."""
SLOW = 1e6
"""Bytes per second of a link over which a toy's layer takes two milliseconds."""


def test_a_model_is_proven_and_left_as_it_was() -> None:
    model, plain = Model(), Model()
    plain.load_state_dict(model.state_dict())
    memory = engine(model)
    assert memory.streamer is not None and not memory.streamer.slots
    assert memory.streamer.bytes_streamed == 0
    memory.check_integrity()
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name))


def test_an_address_that_was_kept_is_caught() -> None:
    refused = r"'toy': after its layers were moved, layers\.0 gives another output \(with 0 of"
    with pytest.raises(UnsupportedModel, match=refused + ".*max_percent to 0"):
        engine(Model(Remembering))


def test_layers_that_run_ahead_of_their_copies_are_caught() -> None:
    with pytest.raises(UnsupportedModel, match=f"with {LAYERS} of {LAYERS} layers streamed"):
        engine(Model(), Unawaited, copy_bytes_per_s=SLOW)
    assert engine(Model(), copy_bytes_per_s=SLOW).streamer is not None


@pytest.mark.parametrize("index", range(LAYERS))
def test_a_wrong_byte_in_a_master_is_caught(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place = PlacedLayers.place

    def placed(self: PlacedLayers, *args: object, **more: object) -> object:
        streamer = place(self, *args, **more)  # type: ignore[arg-type]
        ctypes.memset(streamer.layers[index].master, 0x55, 4)
        return streamer

    monkeypatch.setattr(PlacedLayers, "place", placed)
    with pytest.raises(UnsupportedModel, match=f"layers.{index}.*layers streamed"):
        engine(Model())


class Rows(Remembering):
    """Layer that uses another kernel for many rows than for few; that kernel was given the address
    of a weight.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.shape[0] > MANY_TOKENS // 2 else Block.forward(self, x)


class Dummies(Runner):
    """Model runner that computes as many tokens as a dummy run asks for."""

    def _dummy_run(self, count: int, **_: object) -> None:
        with torch.inference_mode():
            zeros = torch.zeros(count, dtype=torch.int64)
            self.model(input_ids=zeros, positions=zeros)


def started(model: Model, proof_tokens: tuple[int, ...], most: int) -> DeviceMemory:
    """Memory of an engine that a worker has started with proofs of these numbers of tokens; a step
    has at most `most`.
    """
    start_up = started_with()
    runner = Dummies(model)
    worker = SimpleNamespace(
        mirage=SimpleNamespace(memory=start_up.memory),
        model_runner=runner,
        proof_tokens=proof_tokens,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=most),
    )
    start_up.parameters.found(model)
    step = partial(_dummy_step, worker)
    start_up.loaded(runner, step, step)
    return start_up.memory


def test_kernels_of_many_rows_are_proven_where_there_are_such() -> None:
    few, many = MirageCPUWorker.proof_tokens, (TOKENS, MANY_TOKENS)
    with pytest.raises(UnsupportedModel, match=r"layers\.0 gives another output"):
        started(Model(Rows), many, most=2048)
    assert started(Model(Rows), few, most=2048).streamer is not None, "the control"
    assert started(Model(Rows), many, most=64).streamer is not None, "none has so many rows"
    assert started(Model(), many, most=2048).streamer is not None


class Noisy(Block):
    """Layer whose outputs never have the same bits twice."""

    noise = 1e-5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fresh = torch.rand(WIDTH, generator=torch.Generator().manual_seed(id(x) + Noisy.calls))
        Noisy.calls += 1
        return super().forward(x) + self.noise * fresh

    calls = 0


class NoisyAndRemembering(Noisy, Remembering):
    """Noisy layer that also keeps the address of its weight, so that moving it matters."""


def test_of_a_model_that_differs_each_time_only_more_than_that_counts() -> None:
    assert engine(Model(Noisy)).streamer is not None
    with pytest.raises(UnsupportedModel):
        engine(Model(NoisyAndRemembering))


def test_a_model_whose_output_gets_another_shape_is_refused() -> None:
    shapes, changing = iter([2, 2, 3]), iter([2, 3])
    proof = Proof(lambda: Seen([], torch.zeros(next(shapes))), "t")
    with pytest.raises(UnsupportedModel, match="the model gives another output"):
        proof._compare("with a layer away")
    with pytest.raises(NoForward):
        Proof(lambda: Seen([], torch.zeros(next(changing))), "t")


class Unwritten(Block):
    """Layer that reads device memory which was never written: it is the same until torch frees its
    cache.
    """

    emptied = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1e-5 * Unwritten.emptied


@pytest.mark.parametrize(("initialised", "steady"), [(True, False), (False, True)])
def test_memory_that_nobody_wrote_differs_between_the_first_two_forwards(
    initialised: bool,
    steady: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def empty() -> None:
        Unwritten.emptied += 1

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialised)
    monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    caplog.set_level(logging.INFO, "mirage.engine.proof")
    engine(Model(Unwritten))
    compared, outputs = map(int, re.search(r"outputs=(\d+) of (\d+)", caplog.text).groups())
    assert (compared == outputs) is steady


class Asking(Model):
    """Model that needs an input which only a request has."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        raise KeyError("pixels")


def test_a_model_that_cannot_be_computed_without_requests_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = engine(model := Asking())
    assert memory.streamer is None and memory.layer_bytes > 0
    assert "layers stay where they are: it cannot be computed" in caplog.text
    assert "KeyError: 'pixels'" in caplog.text
    assert memory.fixed_bytes == model.embed.weight.nbytes
    assert memory.outside_bytes == memory.fixed_bytes + LAYERS * memory.layer_bytes


def test_a_model_that_was_built_past_us_stays(caplog: pytest.LogCaptureFixture) -> None:
    runner = Runner(Model())
    late = started_with()
    late.loaded(runner, runner.step, runner.step)
    assert late.memory.streamer is None and late.memory.layer_bytes > 0
    assert "built it in a way that is not known" in caplog.text


def test_layers_stay_if_they_are_told_to() -> None:
    model = Model()
    before = [parameter.data_ptr() for parameter in model.parameters()]
    assert engine(model, moves=False).streamer is None
    assert [parameter.data_ptr() for parameter in model.parameters()] == before


def test_weights_that_vanish_while_they_are_loaded_stay(caplog: pytest.LogCaptureFixture) -> None:
    memory = engine(Model())
    whole, model = memory.layer_bytes, Model()
    runner = Runner(model)
    late = started_with()
    late.parameters.found(model)
    for layer in model.layers:
        layer.out.weight = torch.nn.Parameter(torch.empty(0))
    late.loaded(runner, runner.step, runner.step)
    assert late.memory.streamer is None and late.memory.layer_bytes == whole
    assert "a kernel has taken their weights away while they were loaded (out)" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("processor", [None, "amx"])
def test_int8_weights_that_move_as_if_they_could_are_caught(
    processor: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers with int8 weights are moved although oneDNN's kernel has a copy of the weight and the
    scale's address. The proof names the first layer that computes something else.
    """
    on(processor, monkeypatch)
    make_model(OFFSET, tmp_path)
    out = must(spawn("forced.py", tmp_path, OFFSET))
    assert re.search(r"after its layers were moved, model\.layers\.0\.\S+ gives another", out), out


@pytest.mark.slow
def test_int8_weights_that_stay_parameters_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symmetric int8 weights, packed for AMX, stay parameters of the model. Their layers move, and
    the engine starts.
    """
    on("amx", monkeypatch)
    make_model(SYMMETRIC, tmp_path)
    assert must(spawn("forced.py", tmp_path, SYMMETRIC)).split() == ["started", "10"]


def on(processor: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make later child processes use the kernels of a class of processors, such as ``amx``; skip
    the test if this machine cannot. None for its own class."""
    if processor is None:
        return
    if not kinds.runs_here(processor):
        pytest.skip(f"engines cannot run as on {processor} here")
    monkeypatch.setenv(kinds.VARIABLE, processor)
