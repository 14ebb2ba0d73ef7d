"""Real engines compute a request of their own before they serve, which leaves no trace.

Tenants take turns, so a first step has to wait for the turn. The models generate text, speculate
with a draft, or compute embeddings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from supervised import Served, serving

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.zoo import FAMILIES, make

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

START_S = 400
NAMES = ("llama", "llama-eagle", "bert")
COUNTED = ("steps", "tokens", "prefill_tokens", "tokens_from_device", "preemptions")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("first")
    tenants: list[dict[str, Any]] = []
    for name in NAMES:
        family, path = FAMILIES[name], make(FAMILIES[name], folder)
        tenant = {"name": name, "model": str(path), "share": 33, "max_num_seqs": 8}
        more = dict(family.all_arguments(path))
        more.pop("max_model_len", None)
        tenants.append(
            tenant | {"max_model_len": 256, "max_num_batched_tokens": 256, "engine_args": more}
        )
    content = {
        "device": {"memory": "64MiB"},
        "tenants": tenants,
        "dtype": "float32",
        "sharing": {"mode": "temporal"},
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(content))
    with serving(config, fake=False, ready_timeout_s=START_S) as served:
        served.drain()
        yield served


def counts(served: Served, name: str) -> dict[str, int]:
    tenant = served.request("GET", "/mirage/state")[1]["tenants"][name]
    return {key: tenant[key] for key in COUNTED}


def test_nothing_is_counted_or_cached_of_what_engines_computed_by_themselves(
    served: Served,
) -> None:
    """All counts are 0 before the first request of a client, and that adds only its own tokens;
    none is found in the cache.
    """
    for name in NAMES:
        assert counts(served, name) == dict.fromkeys(COUNTED, 0), name
    prompt, tokens = "abcdefgh" * 8, 4
    body = {"model": "llama", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    status, answer = served.request("POST", "/v1/completions", body | {"ignore_eos": True})
    assert status == 200, answer
    asked = answer["usage"]["prompt_tokens"]
    expected = {"steps": tokens, "tokens": asked + tokens - 1, "prefill_tokens": asked}
    served.until("it is counted", lambda: counts(served, "llama")["steps"] == tokens)
    assert counts(served, "llama") == dict.fromkeys(COUNTED, 0) | expected


def test_each_kind_serves(served: Served) -> None:
    body = {"model": "llama-eagle", "prompt": "hello", "max_tokens": 6, "temperature": 0}
    status, answer = served.request("POST", "/v1/completions", body | {"ignore_eos": True})
    assert (status, answer["usage"]["completion_tokens"]) == (200, 6)
    status, answer = served.request("POST", "/v1/embeddings", {"model": "bert", "input": "hello"})
    assert (status, len(answer["data"][0]["embedding"])) == (200, 128)


UNFOLLOWED = {
    "no token": ({"json": {"$ref": "#"}}, "it admits no token at this place"),
    "negative": (
        {"json": {"type": "string", "minLength": -5}},
        "Invalid repetition range {-5, -1}",
    ),
    "twice": ({"grammar": 'root ::= "a"\nroot ::= "b"'}, 'Rule "root" is defined multiple times'),
    "nowhere": ({"json": {"$ref": "#/$defs/none"}}, "Pointer '/$defs/none' does not exist"),
}
"""Structured outputs whose form is right: vLLM's core finds the first three wrong."""


@pytest.mark.parametrize("name", UNFOLLOWED)
def test_a_grammar_that_cannot_be_followed_is_an_error_of_the_request(
    served: Served, name: str
) -> None:
    """A request with an impossible grammar is answered with 400 and the reason, and the engine
    serves on. A request with a good grammar comes first, because the first one makes vLLM choose
    its backend.
    """
    grammar, why = UNFOLLOWED[name]
    body = {"model": "llama", "prompt": "hello", "max_tokens": 4}
    right = {"structured_outputs": {"choice": ["a", "b"]}}
    assert served.request("POST", "/v1/completions", body | right)[0] == 200
    asked = {"structured_outputs": grammar}
    status, answer = served.request("POST", "/v1/completions", body | asked)
    assert (status, answer["error"]["type"]) == (400, "BadRequestError"), answer
    assert why in answer["error"]["message"]
    assert served.request("POST", "/v1/completions", body)[0] == 200


def test_log_probabilities_are_given_with_ranks(served: Served) -> None:
    body = {"model": "llama", "prompt": "hello", "max_tokens": 3, "temperature": 0}
    more = {"prompt_logprobs": 1, "logprobs": 2, "ignore_eos": True}
    status, answer = served.request("POST", "/v1/completions", body | more)
    assert status == 200, answer
    (choice,) = answer["choices"]
    assert len(choice["logprobs"]["token_logprobs"]) == 3
    ranks = [each["rank"] for token in choice["prompt_logprobs"][1:] for each in token.values()]
    assert 1 in ranks and min(ranks) == 1
