"""Adapters that come, go and are replaced in real engines: texts equal a fresh plain vLLM's."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lora_folder import make_adapter
from plain_vllm import plain
from supervised import Served, serving

from mirage.errors import InputRefused
from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.forms import OperatorAct
from mirage.tools.demo.models import make_models

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

START_S = 300
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
PROMPTS = ("hello world", "a prompt of some blocks, so that its prefix is found again; " * 3)
"""Prompts; the second one fills several KV blocks of 32 tokens."""
TOKENS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    model = make_models(folder, which=["llama"], layers=4)["llama"]
    for seed, name in enumerate(("one", "two"), 1):
        make_adapter(folder / "lora" / name, model, seed)
    config = json.loads((model / "config.json").read_text())
    (folder / "wide").mkdir()
    wide = config | {"hidden_size": 2 * config["hidden_size"]}
    (folder / "wide" / "config.json").write_text(json.dumps(wide))
    make_adapter(folder / "lora" / "wide", folder / "wide", 3)
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[str]]:
    """Texts of a plain vLLM that has computed nothing else, by adapter (and of the bare model)."""
    modules = [f"{name}={folder / 'lora' / name}" for name in ("one", "two")]
    arguments = LORA | {"lora_modules": modules, "max_model_len": 256}
    with plain({"llama": folder / "llama"}, llama=arguments) as servers:
        texts = {name: said(servers["llama"], name) for name in ("llama", "one", "two")}
    assert len({text for each in texts.values() for text in each}) == 3 * len(PROMPTS)
    return texts


@pytest.fixture(scope="module")
def served(folder: Path, expected: dict[str, list[str]]) -> Iterator[Served]:
    tenant = {"name": "llama", "model": "llama", "share": 100, "max_model_len": 256}
    content = {
        "device": {"memory": "48MiB"},
        "dtype": "float32",
        "tiers": {"host": {"bytes": "32MiB"}},
        "adapter_folders": ["lora"],
        "tenants": [tenant | {"engine_args": LORA}],
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(content))
    with serving(config, fake=False, ready_timeout_s=START_S) as served:
        served.drain()
        yield served


def said(server: Any, model: str) -> list[str]:
    return [text_of(server.request("POST", *request(model, prompt))) for prompt in PROMPTS]


def request(model: str, prompt: str) -> tuple[str, dict[str, Any]]:
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    return "/v1/completions", body | {"ignore_eos": True}


def text_of(answer: tuple[int, Any]) -> str:
    status, told = answer
    assert status == 200, told
    return str(told["choices"][0]["text"])


@pytest.fixture
def operator(served: Served) -> AdminClient:
    """Client of the server's admin socket; the model has no adapter at first."""
    lines = served.until("it tells", lambda: [x for x in served.log if "operators: --socket" in x])
    client = AdminClient(Path(lines[0].split()[-1]))
    client.set("llama", {"adapters": None})
    return client


def states(operator: AdminClient) -> dict[str, str]:
    return {one.name: one.state for one in operator.tenant("llama").adapters}


def test_an_adapter_by_the_name_of_another_says_what_it_says_alone(
    served: Served, operator: AdminClient, expected: dict[str, list[str]], folder: Path
) -> None:
    """The name of an adapter is given to another one, in the same folder or in another. Cached KV
    blocks of the first adapter, in the engine and in the tier, are not used for the second.
    """
    assert said(served, "llama") == expected["llama"]
    place = folder / "lora" / "place"
    for before in ("one", "two", "one"):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / "lora" / before, place)
        operator.set("llama", {"adapters.x": "lora/place"})
        for _ in range(2):
            assert said(served, "x") == expected[before]
        operator.set("llama", {"adapters": None})
        assert served.request("POST", *request("x", "hi"))[0] == 404
    for now in ("two", "one", "two"):
        operator.set("llama", {"adapters.x": f"lora/{now}"})
        for _ in range(2):
            assert said(served, "x") == expected[now]
    assert said(served, "llama") == expected["llama"]
    assert operator.tenant("llama").restarts == 0


@pytest.mark.parametrize("stream", [False, True])
def test_answers_have_the_name_that_was_asked_for(
    served: Served, operator: AdminClient, stream: bool
) -> None:
    operator.set("llama", {"adapters": {"team/x:1.2": "lora/one"}})
    route, body = request("team/x:1.2", "hello")
    status, told = served.request("POST", route, body | {"stream": stream})
    text = told.decode() if stream else json.dumps(told)
    assert status == 200, text
    assert set(re.findall(r'"model": ?"([^"]*)"', text)) == {"team/x:1.2"}


def test_requests_end_with_the_adapter_that_they_began_with(
    served: Served, operator: AdminClient, expected: dict[str, list[str]]
) -> None:
    operator.set("llama", {"adapters.x": "lora/one"})
    running = [served.open("POST", *request("x", prompt)) for prompt in PROMPTS]
    served.until("they run", lambda: operator.tenant("llama").running == len(PROMPTS))
    operator.set("llama", {"adapters.x": "lora/two"})
    assert said(served, "x") == expected["two"]
    for connection, text in zip(running, expected["one"], strict=True):
        answer = connection.getresponse()
        assert text_of((answer.status, json.loads(answer.read()))) == text


def test_a_model_that_sleeps_loads_and_more_adapters_than_slots_are_served(
    served: Served, operator: AdminClient, expected: dict[str, list[str]]
) -> None:
    operator.act("llama", OperatorAct.SLEEP)
    served.until("it sleeps", lambda: operator.tenant("llama").state == "sleeping")
    names = {"x": "one", "y": "two", "z": "one", "v": "two"}
    operator.set("llama", {"adapters": {name: f"lora/{of}" for name, of in names.items()}})
    assert set(states(operator).values()) == {"loaded"}
    assert operator.tenant("llama").state == "sleeping"
    for _ in range(2):
        assert {name: said(served, name) for name in names} == {
            name: expected[of] for name, of in names.items()
        }


def test_an_adapter_of_another_model_is_refused(
    served: Served, operator: AdminClient, expected: dict[str, list[str]]
) -> None:
    with pytest.raises(
        InputRefused, match=r"adapter 'x': .* to 256 wide in the model, 512 to 512 in it"
    ):
        operator.set("llama", {"adapters.x": "lora/wide"})
    assert states(operator) == {} and said(served, "llama") == expected["llama"]


def test_a_new_engine_has_them_again(
    served: Served, operator: AdminClient, expected: dict[str, list[str]]
) -> None:
    operator.set("llama", {"adapters.x": "lora/two"})
    assert said(served, "x") == expected["two"]
    served.engine_core("llama").kill()
    served.until("it has ended", lambda: served.engine_state("llama") != "ready")
    served.until("it is back", lambda: served.engine_state("llama") == "ready")
    assert said(served, "x") == expected["two"]
    assert said(served, "llama") == expected["llama"]
