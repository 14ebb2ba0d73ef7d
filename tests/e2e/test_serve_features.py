"""Features of OpenAI's API on three families, while memory moves and clients leave.

All tests use one server: three demonstration models under policy mirage, and a fourth tenant whose
tokenizer cannot be read. Answers are compared with plain vLLM's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from plain_vllm import plain
from questions import CLOSE, QUESTIONS, greedy
from storms import storm
from supervised import Served, serving

from mirage.tools.demo.models import make_models

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

START_S = 400
FAMILIES = ("opt", "llama", "qwen3")
SHARES = {"opt": 36, "llama": 28, "qwen3": 28}
ARGUMENTS = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}
SPLIT_TOKENS = 100
"""Tokens per step, so that the prompts of the questions are split over two."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("features")
    models = make_models(folder, which=FAMILIES)
    broken = make_models(folder / "broken", which=["llama"], layers=2)["llama"]
    (broken / "tokenizer.json").write_text("{}")
    return models | {"broken": broken}


@pytest.fixture(scope="module")
def expected(models: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Plain vLLM's answer to each question, by model family."""
    arguments = ARGUMENTS | {"max_model_len": 330}
    paths = {name: models[name] for name in FAMILIES}
    with plain(paths, **dict.fromkeys(FAMILIES, arguments)) as servers:
        return {
            name: {kind: ask(servers[name], name) for kind, ask in QUESTIONS.items()}
            for name in FAMILIES
        }


@pytest.fixture(scope="module")
def served(models: dict[str, Path], expected: dict[str, Any]) -> Iterator[Served]:
    common = {"max_model_len": 330, "max_num_seqs": 24, "max_num_batched_tokens": SPLIT_TOKENS}
    tenants = [
        {"name": name, "model": str(models[name]), "share": share, "engine_args": ARGUMENTS}
        | common
        for name, share in SHARES.items()
    ]
    broken = {"name": "broken", "model": str(models["broken"]), "share": 8, "max_model_len": 64}
    content = {
        "device": {"memory": "100MiB"},
        "dtype": "float32",
        "tenants": [*tenants, broken],
    }
    config = models["opt"].parent / "config.yaml"
    config.write_text(yaml.safe_dump(content))
    with serving(config, fake=False, ready_timeout_s=START_S) as served:
        served.drain()
        yield served


def tenants(served: Served) -> dict[str, Any]:
    return dict(served.request("GET", "/mirage/state")[1]["tenants"])


def is_idle(served: Served) -> bool:
    now = tenants(served)
    return set(now) == set(FAMILIES) and all(
        t["running"] == t["waiting"] == t["kv_used_blocks"] == t["layers_remapped"] == 0
        for t in now.values()
    )


def test_one_tenant_that_cannot_start_is_failed_and_says_why(served: Served) -> None:
    engines = served.request("GET", "/mirage/state")[1]["engines"]
    assert {name: engines[name]["state"] for name in FAMILIES} == dict.fromkeys(FAMILIES, "ready")
    assert engines["broken"]["state"] == "failed"
    reason = engines["broken"]["reason"]
    assert reason.endswith("/tokenizer.json: model: it is missing")
    assert served.request("POST", "/tokenize", {"model": "broken"})[1]["error"]["message"] == (
        f"model 'broken' is failed: {reason}"
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", QUESTIONS)
def test_the_answer_of_an_idle_server_is_plain_vllms(
    served: Served, expected: dict[str, Any], family: str, kind: str
) -> None:
    assert QUESTIONS[kind](served, family) == expected[family][kind]


def test_answers_are_the_same_in_a_storm_and_nothing_is_left_of_it(
    served: Served, expected: dict[str, Any]
) -> None:
    for family in FAMILIES:  # the first of its kind has vLLM compile a kernel, for many seconds
        assert QUESTIONS["logprobs"](served, family) == expected[family]["logprobs"]
    served.until("all are idle", lambda: is_idle(served))
    before = tenants(served)
    with storm(served, FAMILIES), ThreadPoolExecutor(6) as pool:
        asked = [
            (family, kind, pool.submit(QUESTIONS[kind], served, family))
            for _ in range(2)
            for kind in QUESTIONS
            for family in FAMILIES
        ]
        for family, kind, answer in asked:
            said = answer.result(120)
            assert kind in CLOSE or said == expected[family][kind], (family, kind)
    served.until("all are idle", lambda: is_idle(served))
    after = served.until("memory is back", lambda: same_memory(served, before))
    history = served.timeline()
    samples = [s["tenants"] for s in history["samples"]]
    assert max(t["layers_remapped"] for s in samples for t in s.values()) > 0, "no layer moved"
    for family in FAMILIES:
        most = max(s[family]["kv_blocks"] for s in samples if family in s)
        assert most > before[family]["kv_blocks"], "no KV memory moved"
    for sample in samples:
        assert sum(t["held_bytes"] for t in sample.values()) <= history["device_bytes"]
    assert all(t["restarts"] == 0 for n, t in engines(served).items() if n in FAMILIES)
    for family in FAMILIES:
        assert greedy(served, family) == expected[family]["greedy"]
    assert json.dumps(after)


def engines(served: Served) -> dict[str, Any]:
    return dict(served.request("GET", "/mirage/state")[1]["engines"])


def same_memory(served: Served, before: dict[str, Any]) -> Any:
    now = tenants(served)
    kinds = ("kv_blocks", "layers_remapped", "held_bytes", "kv_used_blocks")
    same = all(now[name][kind] == before[name][kind] for name in FAMILIES for kind in kinds)
    return now if same else None
