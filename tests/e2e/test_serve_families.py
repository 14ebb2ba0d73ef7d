"""`mirage serve` with models that are no plain decoders: engines have the sizes of `check`.

All tests use one server. Its models have windows and full attention, latent attention, int8 weights
that oneDNN packs, and an encoder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from supervised import Served, serving

sys.path.insert(0, str(Path(__file__).parents[2]))

from mirage.config import load
from mirage.serve.fit.fit import Fit
from mirage.serve.launch.preflight import fit_config
from tests.zoo import FAMILIES, make

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.one_of("kinds")]

START_S = 400
TEXTS = {"gemma3": 18, "deepseek-v2": 48, "llama-w8a8": 14}
ENCODER = {"bert": 13}
"""Share in per cent of the tenant whose model is an encoder."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    tenants: list[dict[str, Any]] = [
        {"name": name, "model": str(make(FAMILIES[name], folder)), "share": share}
        for name, share in (TEXTS | ENCODER).items()
    ]
    for tenant in tenants:
        tenant |= {"max_model_len": 256, "max_num_batched_tokens": 256, "max_num_seqs": 16}
    tenants[-1] |= {"engine_args": {"runner": "pooling"}}
    content = {"device": {"memory": "26MiB"}, "tenants": tenants}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def fits(config: Path) -> dict[str, Fit]:
    return fit_config(load(config))


@pytest.fixture(scope="module")
def served(config: Path) -> Iterator[Served]:
    logs = str(config.parent / "logs")
    with serving(config, "--log-dir", logs, fake=False, ready_timeout_s=START_S) as served:
        served.drain()
        yield served


def complete(served: Served, model: str, prompt: str, tokens: int) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    status, answer = served.request("POST", "/v1/completions", body | {"ignore_eos": True})
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == tokens
    return str(answer["choices"][0]["text"])


def test_engines_are_what_check_said(served: Served, fits: dict[str, Fit]) -> None:
    history = served.timeline()
    for name, fit in fits.items():
        engine = history["tenants"][name]
        assert engine["layers"] == fit.layers
        assert engine["layer_bytes"] == fit.layer_bytes
        if fit.block_bytes:
            assert engine["extent_blocks"] == fit.extent_blocks
            assert engine["extent_bytes"] == fit.extent_bytes
            blocks = history["samples"][-1]["tenants"][name]["kv_blocks"]
            assert blocks == fit.base_blocks - 1


def test_check_knows_whose_layers_stay(fits: dict[str, Fit]) -> None:
    stays = {name for name, fit in fits.items() if fit.stays is not None}
    assert stays == {"llama-w8a8"}


def test_vectors_come_out_the_same_after_the_others_were_busy(served: Served) -> None:
    body = {"model": "bert", "input": ["hello", "a longer text than that"]}
    status, before = served.request("POST", "/v1/embeddings", body)
    assert status == 200, before
    texts = {model: complete(served, model, "hello", 12) for model in TEXTS}
    most = busiest(served, "gemma3")
    assert most > 0, "the encoder's and the others' layers became KV cache of the busy one"
    assert texts == {model: complete(served, model, "hello", 12) for model in TEXTS}
    assert served.request("POST", "/v1/embeddings", body)[1]["data"] == before["data"]


def busiest(served: Served, model: str) -> int:
    """Send many long requests to one model at once; return the largest number of layers that all
    models together had given away.
    """
    prompts = [chr(65 + i) * 150 for i in range(16)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(lambda prompt: complete(served, model, prompt, 90), prompts))
    samples = served.timeline()["samples"]
    return max(sum(t["layers_remapped"] for t in sample["tenants"].values()) for sample in samples)
