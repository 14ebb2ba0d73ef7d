"""`mirage serve` with real vLLM engines: two demonstration models on one device.

All tests use one server, because its start takes long; the last test ends it.
"""

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from left_shared import shared_files
from supervised import DEADLINE_S, Served, assert_gone, serving

from mirage.tools.demo.models import make_models

pytestmark = pytest.mark.e2e

START_S = 300
MODELS = ("llama", "team/opt")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    paths = make_models(folder, which=["llama", "opt"], layers=4)
    tenants = [
        {"name": name, "model": str(path), "share": 50, "max_model_len": 256}
        for name, path in zip(MODELS, paths.values(), strict=True)
    ]
    device = {"memory": "64MiB", "profile": "host"}
    content = {"device": device, "dtype": "float32", "tenants": tenants}
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(content))
    logs = str(folder / "logs")
    with serving(config, "--log-dir", logs, fake=False, ready_timeout_s=START_S) as served:
        served.drain()
        yield served


def complete(served: Served, model: str, prompt: str = "hello", tokens: int = 6) -> dict[str, Any]:
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    status, answer = served.request("POST", "/v1/completions", body)
    assert status == 200, answer
    return dict(answer)


@pytest.mark.parametrize("model", MODELS)
def test_a_stream_says_what_the_whole_answer_says(served: Served, model: str) -> None:
    whole = complete(served, model)
    assert whole["model"] == model
    assert whole["usage"]["completion_tokens"] == 6
    body = {"model": model, "prompt": "hello", "max_tokens": 6, "temperature": 0, "stream": True}
    answer = served.open("POST", "/v1/completions", body).getresponse()
    assert answer.headers.get_content_type() == "text/event-stream"
    events = [e.removeprefix(b"data: ") for e in answer.read().split(b"\n\n") if e]
    assert events.pop() == b"[DONE]"
    assert len(events) > 1
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
    assert text == whole["choices"][0]["text"]


def test_the_controller_begins_with_the_times_of_the_profile(served: Served) -> None:
    for model in MODELS:
        said = f"tenant {model!r}: T_c is taken to be "
        assert any(said in line and "device.profile" in line for line in served.log)


def test_chat(served: Served) -> None:
    body = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    status, answer = served.request("POST", "/v1/chat/completions", body)
    assert status == 200, answer
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_an_unknown_model_is_a_404_that_names_the_known(served: Served) -> None:
    status, answer = served.request("POST", "/v1/completions", {"model": "gpt", "prompt": "x"})
    assert status == 404
    assert "'llama', 'team/opt'" in answer["error"]["message"]


def test_the_engines_own_refusal_comes_through(served: Served) -> None:
    body = {"model": "llama", "prompt": "x" * 300, "max_tokens": 1}
    status, answer = served.request("POST", "/v1/completions", body)
    assert status == 400
    assert "256" in answer["error"]["message"]


def test_the_timeline_shows_both_engines(served: Served) -> None:
    complete(served, "llama")
    history = served.timeline()
    assert set(history["tenants"]) == set(MODELS)
    newest = history["samples"][-1]["tenants"]
    assert all(newest[name]["kv_blocks"] > 0 for name in MODELS)
    assert sum(newest[name]["held_bytes"] for name in MODELS) <= history["device_bytes"]


def test_a_killed_engine_comes_back_and_the_other_does_not_notice(served: Served) -> None:
    before = {model: complete(served, model)["choices"] for model in MODELS}
    core = served.engine_core("team/opt")
    shared = shared_files({core, *core.parents()[:1]})
    many = {"n": 16, "max_tokens": 250, "ignore_eos": True}  # or it ends before it is seen
    running = served.open("POST", "/v1/completions", {"model": "team/opt", "prompt": "x"} | many)
    served.until("the request runs", lambda: in_batch(served, "team/opt"))
    core.send_signal(signal.SIGKILL)
    assert running.getresponse().status in (502, 503)
    served.until("it is away", lambda: served.engine_state("team/opt") != "ready")
    body = {"model": "team/opt", "prompt": "x", "max_tokens": 1}
    waits = served.open("POST", "/v1/completions", body)
    assert complete(served, "llama")["choices"] == before["llama"]
    assert waits.getresponse().status == 200
    assert served.engine_state("team/opt") == "ready"
    assert complete(served, "team/opt")["choices"] == before["team/opt"]
    assert_gone({core})
    assert not any(path.exists() for path in shared)


def in_batch(served: Served, model: str) -> bool:
    tenants = served.request("GET", "/mirage/state")[1]["tenants"]
    return model in tenants and tenants[model]["running"] > 0


def test_ctrl_c_leaves_nothing(served: Served) -> None:
    family, folder = served.family(), served.run_folder()
    assert folder is not None
    shared = shared_files(family)
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(DEADLINE_S) == 130
    assert_gone(family)
    assert not folder.exists()
    assert not any(path.exists() for path in shared)
    assert not any("Traceback" in line for line in served.log)
