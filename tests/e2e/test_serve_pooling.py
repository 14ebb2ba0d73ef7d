"""An embedding model beside a model that generates text, over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from plain_vllm import plain
from supervised import Served, serving

from mirage.tools.demo.models import make_models

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.one_of("kinds")]

START_S = 300
EMBED = {"runner": "pooling", "convert": "embed"}
TEXTS = ["hello world", "a longer text, which has some more tokens than the first", "x"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pooling")
    made = make_models(folder, which=["llama", "qwen3"], layers=4)
    return {"writer": made["llama"], "embedder": made["qwen3"]}


def embeddings(server: Any) -> list[list[float]]:
    """Embeddings of the texts, requested one at a time, because the size of a batch changes the
    last bits.
    """
    found = []
    for text in TEXTS:
        body = {"model": "embedder", "input": text}
        status, answer = server.request("POST", "/v1/embeddings", body)
        assert status == 200, answer
        found.append(answer["data"][0]["embedding"])
    return found


@pytest.fixture(scope="module")
def expected(models: dict[str, Path]) -> list[list[float]]:
    arguments = EMBED | {"max_model_len": 256}
    with plain({"embedder": models["embedder"]}, embedder=arguments) as servers:
        return embeddings(servers["embedder"])


@pytest.fixture(scope="module")
def served(models: dict[str, Path], expected: list[list[float]]) -> Iterator[Served]:
    common = {"share": 50, "max_model_len": 256}
    tenants = [
        {"name": "writer", "model": str(models["writer"])} | common,
        {"name": "embedder", "model": str(models["embedder"]), "engine_args": EMBED} | common,
    ]
    content = {"device": {"memory": "34MiB"}, "dtype": "float32", "tenants": tenants}
    config = models["writer"].parent / "config.yaml"
    config.write_text(yaml.safe_dump(content))
    with serving(config, "--all-or-nothing", fake=False, ready_timeout_s=START_S) as served:
        served.drain()
        yield served


def test_embeddings_are_plain_vllms(served: Served, expected: list[list[float]]) -> None:
    assert embeddings(served) == expected
    assert len({tuple(vector) for vector in expected}) == len(TEXTS)


def test_they_are_the_same_while_the_writer_takes_the_embedders_layers(
    served: Served, expected: list[list[float]]
) -> None:
    body = {"prompt": ["abc" * 20] * 40, "max_tokens": 190, "ignore_eos": True, "stream": True}
    writing = served.open("POST", "/v1/completions", {"model": "writer", **body}).getresponse()
    assert writing.readline().startswith(b"data:")
    served.until(
        "the embedder gave layers", lambda: tenant(served, "embedder")["layers_remapped"] > 0
    )
    assert embeddings(served) == expected
    assert b'"error"' not in writing.read()


def tenant(served: Served, name: str) -> dict[str, Any]:
    return dict(served.request("GET", "/mirage/state")[1]["tenants"][name])


def test_a_route_that_a_model_does_not_serve_gets_vllms_own_answer(served: Served) -> None:
    status, answer = served.request(
        "POST", "/v1/completions", {"model": "embedder", "prompt": "x", "max_tokens": 1}
    )
    assert status in (400, 404), answer
    status, answer = served.request("POST", "/v1/embeddings", {"model": "writer", "input": "x"})
    assert status in (400, 404), answer
    assert served.request("POST", "/tokenize", {"model": "embedder", "prompt": "hi"})[0] == 200
    body = {"model": "embedder", "text_1": TEXTS[0], "text_2": TEXTS}
    status, answer = served.request("POST", "/score", body)
    assert status == 200 and answer["data"][0]["score"] > 0.99
