"""LoRA adapters over HTTP: each under its own name, each with the texts of plain vLLM."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lora_folder import make_adapter
from plain_vllm import plain
from supervised import Served, serving

from mirage.tools.demo.models import make_models

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.one_of("kinds")]

START_S = 300
NAMES = ("llama", "first", "team/second")
ALIAS = "openai/gpt:4o"
ORDER = (*NAMES, *reversed(NAMES))
"""Names in the order of the requests. At the second time a prefix of the prompt is found in the
cache and less is computed, which changes the last bits.
"""
PROMPTS = ("hello world", "a second prompt, a little longer than the first")
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    model = make_models(folder, which=["llama"], layers=4)["llama"]
    make_adapter(folder / "one", model, 1)
    make_adapter(folder / "two", model, 2)
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Any]:
    """Answers of plain vLLM to the same requests in the same order."""
    modules = [f"first={folder / 'one'}", f"team/second={folder / 'two'}"]
    arguments = LORA | {"lora_modules": modules, "max_model_len": 256}
    with plain({"llama": folder / "llama"}, llama=arguments) as servers:
        return [answer(servers["llama"], name) for name in ORDER]


@pytest.fixture(scope="module")
def served(folder: Path, expected: list[Any]) -> Iterator[Served]:
    modules = ["first=one", {"name": "team/second", "path": "two"}]
    tenant = {
        "name": "llama",
        "aliases": [ALIAS],
        "model": "llama",
        "share": 100,
        "max_model_len": 256,
        "engine_args": LORA | {"lora_modules": modules},
    }
    content = {"device": {"memory": "48MiB"}, "dtype": "float32", "tenants": [tenant]}
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(content))
    with serving(config, fake=False, ready_timeout_s=START_S) as served:
        served.drain()
        yield served


def answer(server: Any, model: str) -> Any:
    """Answers to all prompts, asked one at a time, because the size of a batch changes the last
    bits.
    """
    return [ask(server, model, prompt) for prompt in PROMPTS]


def ask(server: Any, model: str, prompt: str) -> Any:
    body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 3}
    status, answer = server.request("POST", "/v1/completions", body)
    assert status == 200, answer
    assert answer["model"] == model
    (choice,) = answer["choices"]
    return choice["text"], choice["logprobs"]


def test_each_adapter_says_what_it_says_in_plain_vllm(served: Served, expected: list[Any]) -> None:
    texts = [[text for text, _ in said] for said in expected]
    assert texts[:3] == texts[:2:-1] and texts[0] != texts[1] != texts[2] != texts[0]
    assert [answer(served, name) for name in ORDER] == expected


def test_models_lists_adapters_under_their_parent(served: Served, folder: Path) -> None:
    cards = {c["id"]: c for c in served.request("GET", "/v1/models")[1]["data"]}
    assert list(cards) == ["llama", ALIAS, *NAMES[1:]]
    assert (cards[ALIAS]["parent"], cards[ALIAS]["root"]) == ("llama", "llama")
    for name, path in (("first", "one"), ("team/second", "two")):
        assert (cards[name]["parent"], cards[name]["root"]) == ("llama", str(folder / path))


def test_other_routes_take_adapters_too(served: Served) -> None:
    body = {"model": "first", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    assert served.request("POST", "/v1/chat/completions", body)[1]["model"] == "first"
    status, told = served.request("POST", "/tokenize", {"model": "first", "prompt": "hi"})
    assert (status, told["tokens"]) == (200, [104, 105])
    status, told = served.request("POST", "/v1/embeddings", {"model": "first", "input": "hi"})
    assert status == 404  # vLLM's own word: it generates, and embeds nothing
    assert served.request("POST", "/v1/load_lora_adapter", {"lora_name": "x"})[0] == 404


CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/completions", {"prompt": "hi", "max_tokens": 4}),
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", CHAT),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 4}),
    ],
)
def test_vllm_answers_in_the_name_of_an_alias(
    served: Served, route: str, body: dict[str, Any], stream: bool
) -> None:
    for name in ("llama", ALIAS):
        status, told = served.request("POST", route, body | {"model": name, "stream": stream})
        text = told.decode() if stream else json.dumps(told)
        assert status == 200, text
        assert set(re.findall(r'"model": ?"([^"]*)"', text)) == {name}
