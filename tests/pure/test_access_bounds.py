"""Bounds and defaults of a tenant for the bodies of requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.config import ConfigError, TenantSection, validated
from mirage.serve.access.bounds import GENERATING, LOGPROBS, TOKENS, shaped
from mirage.serve.access.rates import NO_BOUNDS, BodyBounds, body_bounds
from mirage.serve.api.openai import ApiError
from tests.examples import examples

pytestmark = pytest.mark.pure

BOUNDS = BodyBounds(max_tokens=100, n=4, logprobs=5)
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def seen(body: dict[str, Any], bounds: BodyBounds = BOUNDS, route: str = CHAT) -> Any:
    """Body of a request after `shaped` has applied the tenant's bounds, as its engine would read
    it.
    """
    return json.loads(shaped(json.dumps({"model": "m"} | body).encode(), route, bounds).body)


@pytest.mark.parametrize(
    ("body", "param", "told"),
    [
        ({"max_tokens": 101}, "max_tokens", "101"),
        ({"max_tokens": "101"}, "max_tokens", "101"),
        ({"max_tokens": 101.0}, "max_tokens", "101"),
        ({"max_tokens": 10**300}, "max_tokens", "all"),
        ({"max_tokens": 1, "max_completion_tokens": 101}, "max_completion_tokens", "101"),
        ({"max_output_tokens": 101}, "max_output_tokens", "101"),
        ({"n": 5}, "n", "5"),
        ({"logprobs": 6}, "logprobs", "6"),
        ({"logprobs": True, "top_logprobs": 6}, "top_logprobs", "6"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "all"),
        ({"max_tokens": 100 * "0" + "101"}, "max_tokens", "all"),
        ({"max_tokens": 120 * " " + "101"}, "max_tokens", "all"),
        ({"top_logprobs": "-1." + 120 * "0"}, "top_logprobs", "all"),
    ],
)
@pytest.mark.parametrize("route", sorted(GENERATING))
def test_a_request_beyond_a_bound_is_told_which(
    body: dict[str, Any], param: str, told: str, route: str
) -> None:
    with pytest.raises(ApiError, match=f"^{param} is {told}, and this model allows ") as refusal:
        seen(body, route=route)
    assert (refusal.value.status, refusal.value.param) == (400, param)
    assert seen(body, NO_BOUNDS, route)["model"] == "m"


@pytest.mark.parametrize("value", [True, "many", [1], {"a": 1}, "x" * 1000, [0] * 1000, -3])
def test_what_is_no_number_is_the_engines_to_judge(value: object) -> None:
    assert seen({"max_tokens": value, "n": value})["n"] == value


def test_a_key_may_be_written_with_escapes() -> None:
    with pytest.raises(ApiError):
        shaped(rb'{"model": "m", "\u006dax_tokens": 101}', CHAT, BOUNDS)


def test_the_last_of_two_values_counts() -> None:
    """A JSON body names `n` twice. The bound applies to the last value, because engines use that
    one.
    """
    with pytest.raises(ApiError):
        shaped(b'{"model": "m", "n": 1, "n": 5}', CHAT, BOUNDS)
    shaped(b'{"model": "m", "n": 5, "n": 1}', CHAT, BOUNDS)


@pytest.mark.parametrize(
    ("route", "body", "added"),
    [
        (CHAT, {}, {"max_tokens": 100}),
        (CHAT, {"max_tokens": None}, {"max_tokens": 100}),
        (CHAT, {"max_completion_tokens": 3}, {}),
        (TEXT, {}, {"max_tokens": 16}),
        ("/v1/responses", {}, {"max_output_tokens": 100}),
        ("/v1/responses", {"max_output_tokens": 7}, {}),
        ("/v1/embeddings", {}, {}),
        ("/tokenize", {"n": 9}, {}),
    ],
)
def test_an_answer_is_bounded_where_the_body_does_not_say(
    route: str, body: dict[str, Any], added: dict[str, Any]
) -> None:
    assert seen(body, route=route) == {"model": "m"} | body | added


def test_defaults_are_set_where_a_body_is_silent() -> None:
    bounds = BodyBounds(100, defaults={"max_tokens": 20, "temperature": 0.5, "stop": ["é"]})
    assert seen({"temperature": 0}, bounds) == {
        "model": "m", "temperature": 0, "max_tokens": 20, "stop": ["é"]
    }  # fmt: skip
    assert seen({"max_completion_tokens": 3}, bounds)["stop"] == ["é"]
    assert "max_tokens" not in seen({"max_completion_tokens": 3}, bounds)
    assert seen({}, bounds, "/v1/responses")["max_output_tokens"] == 20
    assert seen({}, bounds, TEXT)["max_tokens"] == 20
    assert seen({}, bounds, "/v1/embeddings") == {"model": "m"}


@given(
    st.dictionaries(
        st.sampled_from([*TOKENS, "n", *LOGPROBS, "x", "}"]),
        st.none()
        | st.integers(-2, 200)
        | st.text()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.just([{}]),
    )
)
@examples(400)
def test_what_passes_is_within_all_bounds_and_otherwise_as_it_was(body: dict[str, Any]) -> None:
    try:
        passed = seen(body)
    except ApiError as error:
        assert error.param in body
        return
    said = {"model": "m"} | body
    assert {name: passed[name] for name in said if said[name] is not None} == {
        name: value for name, value in said.items() if value is not None
    }
    numbers = {name: value for name, value in passed.items() if isinstance(value, int | float)}
    assert all(numbers.get(name, 0) <= 100 for name in TOKENS)
    assert numbers.get("n", 0) <= 4
    assert all(0 <= numbers.get(name, 0) <= 5 for name in LOGPROBS)
    assert any(passed.get(name) is not None for name in TOKENS)


def test_a_form_and_what_follows_an_object_stay() -> None:
    assert shaped(b"--x\r\n", CHAT, BOUNDS).body == b"--x\r\n"
    body = b'\xef\xbb\xbf{"model": "}"} \n'
    assert shaped(body, CHAT, BOUNDS).body == b'\xef\xbb\xbf{"model": "}","max_tokens":100} \n'


def section(**keys: Any) -> TenantSection:
    return validated(TenantSection, {"name": "a", "model": "/m", "share": 1} | keys, "f")  # type: ignore[arg-type]


def test_bounds_come_from_a_tenants_section() -> None:
    limits = {"max_tokens": 9, "n": 1, "logprobs": 0, "in_flight": 3}
    found = body_bounds(section(limits=limits, defaults={"max_tokens": 9, "top_p": 0.5}))
    assert found == BodyBounds(9, 1, 0, {"max_tokens": 9, "top_p": 0.5})
    assert body_bounds(section()) == NO_BOUNDS


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"limits": {"max_tokens": 9}, "defaults": {"max_tokens": 10}}, "is 10: write 1 to 9"),
        ({"defaults": {"max_tokens": "9"}}, "defaults.max_tokens is '9': write 1 or more"),
        ({"defaults": {"model": "x"}}, "defaults.model: each request says it"),
        ({"defaults": {"Top-P": 1}}, "defaults"),
        ({"limits": {"top_logprobs": 1}}, "unknown key 'limits.top_logprobs'"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        section(**keys)
    assert words in str(refusal.value)
