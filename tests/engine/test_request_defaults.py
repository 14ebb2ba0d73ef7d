"""Defaults of requests, and arguments, in a form that vLLM refuses: `check` refuses them too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from probing import answers, question
from tiny import make_model

from mirage.arguments.rules import Verdict
from mirage.arguments.table import TABLE
from mirage.engine import arguments
from mirage.engine.request_defaults import FORMS, refusal
from mirage.serve.access.bounds import GENERATING
from mirage.serve.launch.launcher import flags
from mirage.tools.demo.tokenizer import save_tokenizer

pytestmark = pytest.mark.engine

GOOD: tuple[dict[str, Any], ...] = (
    {},
    {"max_tokens": 256, "temperature": 0.2},
    {"top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, "n": 2},
    {"stop": ["###"], "seed": 7, "skip_special_tokens": False},
    {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
    {"max_completion_tokens": 5, "max_output_tokens": 5},
)
BAD = (
    ({"temperature": "hot"}, "defaults.temperature is 'hot': /v1/completions refuses it: Input"),
    ({"temperature": -1}, "defaults.temperature is -1: /v1/completions refuses it"),
    ({"max_tokens": 5, "top_p": 2}, "defaults.top_p is 2: /v1/completions refuses it"),
    ({"temprature": 1}, "defaults.temprature: no request has this key: check its spelling; nea"),
    ({"logprobs": 5}, "defaults.logprobs is 5: /v1/chat/completions refuses it"),
    ({"tools": 5}, "defaults.tools is 5: /v1/chat/completions refuses it"),
    ({"stream_options": {"include_usage": True}}, "only be defined when `stream=True`"),
    ({"thinking": 5}, "defaults.thinking is 5: /v1/messages refuses it"),
    ({"metadata": {"a": 1}}, "defaults.metadata is {'a': 1}: /v1/responses refuses it"),
)
ONE_WORD = {"seed": [1], "tokenizer_mode": ["auto"], "max_logprobs": [5]}
FINE = {
    "seed": 1,
    "lora_modules": [{"name": "a", "path": "/a"}],
    "limit_mm_per_prompt": {"image": 1},
}
SEVERAL = {"allowed_media_domains"}
"""Arguments that take a list of any words."""


@pytest.mark.parametrize("defaults", GOOD)
def test_what_requests_may_say_may_be_a_default(defaults: dict[str, Any]) -> None:
    assert refusal(defaults) is None


@pytest.mark.parametrize(("defaults", "why"), BAD)
def test_what_a_request_would_be_refused_for_is_no_default(
    defaults: dict[str, Any], why: str
) -> None:
    told = refusal(defaults)
    assert told is not None and why in told and "\n" not in told


def test_each_route_that_generates_is_asked() -> None:
    """Each route that generates has a form for its defaults. A batch of chats needs none, because
    its requests have the form of a chat.
    """
    assert {form.route for form in FORMS} == GENERATING - {"/v1/chat/completions/batch"}


def test_arguments_keep_the_shape_that_they_have_in_the_file() -> None:
    base = flags({"model": "a"})
    for name, value in ONE_WORD.items():
        args = arguments.parse([*base, *flags({name: value}, joined=True)])
        assert arguments.misfit({name: value}, args) == (
            f"engine_args.{name}: found {value!r}, write one value"
        )
    args = arguments.parse([*base, *flags(FINE, joined=True)])
    assert arguments.misfit(FINE, args) is None


def test_no_argument_takes_a_list_for_one_value() -> None:
    """A list is refused for each argument of a single value, by vLLM's parser or by our check of
    its shape.
    """
    base, taken = flags({"model": "a"}), set()
    for name in (name for name, rule in TABLE.items() if rule.verdict is Verdict.WORKS):
        try:
            args = arguments.parse([*base, *flags({name: [1]}, joined=True)])
        except arguments.ArgumentRefused:
            continue
        if arguments.misfit({name: [1]}, args) is None:
            taken.add(name)
    assert taken == SEVERAL


@pytest.mark.slow
def test_vllm_is_asked_about_both(tmp_path: Path) -> None:
    model = make_model("llama", tmp_path)
    save_tokenizer(model, 2048)
    asked = [
        question("fine", model) | {"given": {}, "defaults": GOOD[1]},
        question("hot", model) | {"defaults": BAD[0][0]},
        question("list", model, seed=[1]) | {"given": {"seed": [1]}},
    ]
    said = answers(asked)
    assert "facts" in said["fine"]
    assert said["hot"]["refused"].startswith(BAD[0][1])
    assert said["list"]["refused"] == "engine_args.seed: found [1], write one value"
