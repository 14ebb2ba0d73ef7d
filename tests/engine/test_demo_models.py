"""Texts of demo models are those of their circuits: in vLLM and transformers, in float32 and 64.

The models reveal faults: a foreign layer, a foreign KV block, or a lost one changes the text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import must, spawn
from demo_texts import texts

from mirage.tools.demo.circuit import Circuit
from mirage.tools.demo.families import FAMILIES
from mirage.tools.demo.models import circuit_of, make_models
from mirage.tools.demo.stream import TALLY, lay_out
from mirage.tools.demo.weights import margin

pytestmark = [pytest.mark.engine, pytest.mark.rare]

DRAWN = pytest.mark.drawn("family", together="demo models")

LENGTH = 40
BLOCK = slice(32, 64)
POSITIONS = 2048


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_models(tmp_path_factory.mktemp("demo"), positions=POSITIONS)


@pytest.fixture(scope="module")
def said_by_vllm(models: dict[str, Path]) -> dict[str, dict[str, list[list[int]]]]:
    folder = next(iter(models.values())).parent
    return json.loads(must(spawn("demo_texts.py", folder, LENGTH)).splitlines()[-1])


@DRAWN
@pytest.mark.parametrize("family", FAMILIES)
def test_vllm_says_what_the_circuit_says_however_batched(
    models: dict[str, Path], said_by_vllm: dict[str, dict[str, list[list[int]]]], family: str
) -> None:
    circuit, said = circuit_of(models[family]), said_by_vllm[family]
    assert said["prompts"] == [list(text.encode()) for text in texts()]
    expected = [circuit.generate(prompt, LENGTH) for prompt in said["prompts"]]
    assert said["batch"] == expected
    assert said["chunked"] == expected
    assert said["alone"] == expected[::2]


def load(folder: Path, dtype: str) -> Any:
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval().requires_grad_(False)


def layers_of(model: Any) -> Any:
    return (model.model.decoder if hasattr(model.model, "decoder") else model.model).layers


def see_all(model: Any, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits [tokens, vocabulary] and outputs of attention [tokens, layers, hidden] of a model."""
    import torch

    seen: list[np.ndarray] = []
    last = "o_proj" if hasattr(layers_of(model)[0].self_attn, "o_proj") else "out_proj"
    hooks = [
        getattr(layer.self_attn, last).register_forward_hook(
            lambda _module, _inputs, out: seen.append(out[0].double().numpy())
        )
        for layer in layers_of(model)
    ]
    logits = model(torch.tensor([tokens])).logits[0].double().numpy()
    for hook in hooks:
        hook.remove()
    return logits, np.stack(seen, axis=1)


def tallies(circuit: Circuit, outputs: np.ndarray) -> np.ndarray:
    """[tokens, layers, chains] of polls over weights, read from the outputs of attention."""
    stream = lay_out(circuit, outputs.shape[-1], np.random.default_rng(0))
    plus, minus = outputs[..., stream.tally], outputs[..., stream.tally + stream.logical]
    return (plus - minus) / 2 / TALLY


@DRAWN
@pytest.mark.parametrize("family", FAMILIES)
def test_rounding_stays_far_under_the_margin(models: dict[str, Path], family: str) -> None:
    circuit = circuit_of(models[family])
    single, double = (load(models[family], dtype) for dtype in ("float32", "float64"))
    for length in (1, 40, 1000):
        rng = random.Random(length)
        tokens = [rng.randrange(256) for _ in range(length)]
        reader, following, exact = circuit.start(), [], []
        for token in tokens:
            following.append(reader.read(token))
            exact.append(reader.polls / reader.weights)
        (logits, outputs), (logits64, _) = see_all(single, tokens), see_all(double, tokens)
        assert logits.argmax(-1).tolist() == logits64.argmax(-1).tolist() == following
        lead = np.diff(np.sort(logits64, axis=-1)[:, -2:], axis=-1)
        assert lead.min() > 100 * np.abs(logits - logits64).max()
        error = np.abs(tallies(circuit, outputs) - exact)
        distance = np.abs(np.array(exact) + margin(POSITIONS))
        assert (distance > 50 * error).all()


def continue_text(
    model: Any, prompt: list[int], edit: Callable[[Any], None] = lambda cache: None
) -> list[int]:
    """Greedy text after `prompt`. `edit` may change the KV cache before its first token."""
    import torch

    cache = model(torch.tensor([prompt[:-1]]), use_cache=True).past_key_values
    edit(cache)
    text, token = [], prompt[-1]
    for _ in range(LENGTH):
        token = int(model(torch.tensor([[token]]), past_key_values=cache).logits[0, -1].argmax())
        text.append(token)
    return text


def random_prompts(*lengths: int) -> list[list[int]]:
    rng = random.Random(17)
    return [[rng.randrange(32, 127) for _ in range(length)] for length in lengths]


@DRAWN
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_with_anothers_parameters_changes_every_text(
    models: dict[str, Path], family: str
) -> None:
    model, circuit = load(models[family], "float32"), circuit_of(models[family])
    own = [{n: t.clone() for n, t in x.state_dict().items()} for x in layers_of(model)]
    (prompt,) = random_prompts(300)
    expected = circuit.generate(prompt, LENGTH)
    assert continue_text(model, prompt) == expected
    for index, layer in enumerate(layers_of(model)):
        layer.load_state_dict(own[index - 1])
        assert continue_text(model, prompt) != expected, index
        layer.load_state_dict(own[index])
    assert continue_text(model, prompt) == expected


def zero(tensor: Any) -> None:
    tensor[:, :, BLOCK] = 0


def take_from_elsewhere(tensor: Any) -> None:
    tensor[:, :, BLOCK] = tensor[:, :, 64:96].clone()


@DRAWN
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fault", [zero, take_from_elsewhere])
def test_a_wrong_kv_block_changes_every_text(
    models: dict[str, Path], family: str, fault: Callable[[Any], None]
) -> None:
    model, circuit = load(models[family], "float32"), circuit_of(models[family])

    def edit(cache: Any) -> None:
        for layer in cache.layers:
            fault(layer.keys)
            fault(layer.values)

    for prompt in random_prompts(100, 300, 600, 900):
        assert continue_text(model, prompt, edit) != circuit.generate(prompt, LENGTH)


@pytest.mark.parametrize("part", ["keys", "values"])
def test_one_layers_wrong_keys_or_values_in_one_block_change_most_texts(
    models: dict[str, Path], part: str
) -> None:
    model, circuit = load(models["llama"], "float32"), circuit_of(models["llama"])
    (prompt,) = random_prompts(400)
    expected, changed = circuit.generate(prompt, LENGTH), 0
    for index in range(circuit.layers):
        text = continue_text(model, prompt, lambda c, i=index: zero(getattr(c.layers[i], part)))
        changed += text != expected
    assert changed >= 0.75 * circuit.layers
