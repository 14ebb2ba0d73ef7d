"""Keys of sessions and prefixes, by which requests find the replica that knows them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from mirage.serve.router.affinity import LEAST_BYTES, MOST_BYTES, affinity_of
from tests.examples import examples

pytestmark = pytest.mark.pure
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
LONG = "word " * LEAST_BYTES
SYSTEM = {"role": "system", "content": "You are brief."}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def key(route: str = CHAT, headers: dict[str, str] | None = None, **body: Any) -> str:
    told = json.dumps({"model": "m"} | body).encode()
    return affinity_of(CIMultiDict(headers or {}), route, told)


def chat(*messages: dict[str, str], **body: Any) -> str:
    return key(messages=list(messages), **body)


def test_a_conversation_keeps_its_key_as_it_grows() -> None:
    first = chat(SYSTEM, user(LONG))
    answer = {"role": "assistant", "content": "Yes."}
    assert first.startswith("prefix ")
    assert chat(SYSTEM, user(LONG), answer, user("And then?")) == first
    assert chat(SYSTEM, user(LONG + ".")) != first
    assert chat(user(LONG)) != first
    other = json.dumps({"model": "m", "n": 2, "messages": [SYSTEM, user(LONG)]}, indent=1)
    spaced = affinity_of({}, CHAT, other.encode())
    assert spaced.startswith("prefix "), "however it is written"


def test_a_short_beginning_counts_once_there_is_enough_behind_it() -> None:
    short = user("Hi")
    assert chat(SYSTEM, short) == ""
    grown = chat(SYSTEM, short, {"role": "assistant", "content": LONG}, user("Go on"))
    assert grown == chat(SYSTEM, short, {"role": "assistant", "content": LONG}, user("Stop"))
    assert grown.startswith("prefix ")


def test_a_session_is_what_the_client_calls_one() -> None:
    header = {"x-session-id": "s"}
    assert chat(user(LONG), prompt_cache_key="c", user="u", headers=header) == "session s"
    assert chat(user(LONG), prompt_cache_key="c", user="u") == "session c"
    assert chat(user("Hi"), user="u") == "session u"
    for nothing in ("", None, 7, {"id": 1}):
        assert chat(user("Hi"), prompt_cache_key=nothing) == ""
    assert key(TEXT, user="u", prompt="x") == "session u"
    assert len(chat(user("Hi"), user="u" * 10_000)) < 300


def test_texts_are_known_by_their_first_bytes() -> None:
    first = key(TEXT, prompt=LONG)
    assert first == key(TEXT, prompt=LONG + "more") != key(TEXT, prompt="x" + LONG)
    assert key(TEXT, prompt="short") == ""
    assert key(RESPONSES, input=LONG) != key(RESPONSES, input=LONG, instructions="Be brief.")
    assert key(RESPONSES, input=[user(LONG)]) == key(RESPONSES, input=[user(LONG), user("x")])
    assert key(TEXT, prompt=[1] * LEAST_BYTES).startswith("prefix "), "tokens"


def test_models_that_pool_have_no_key() -> None:
    assert key("/v1/embeddings", input=LONG, user="u") == ""


def test_of_what_is_longer_than_is_looked_at_the_beginning_counts() -> None:
    picture = user("x" * 2 * MOST_BYTES)
    assert chat(picture) == chat(picture, user("x")) != chat(user("y" * 2 * MOST_BYTES))


@examples(500)
@given(st.recursive(st.none() | st.text() | st.integers(), lambda x: st.lists(x), max_leaves=20))
def test_any_body_has_a_key_or_none(value: Any) -> None:
    for name in ("messages", "prompt", "system", "user", "input"):
        told = key(**{name: value, "padding": ""})
        assert told == "" or told.startswith(("session ", "prefix "))


@pytest.mark.parametrize("depth", [300, 5000])
def test_a_body_that_is_nested_deeply_has_a_key_or_none(depth: int) -> None:
    deep = b'{"messages": ' + b"[" * depth + b'"a"' + b"]" * depth + b"}"
    assert affinity_of({}, CHAT, deep)[:7] == ("prefix " if depth == 300 else "")


def test_what_is_no_object_has_none() -> None:
    assert affinity_of({}, CHAT, b"--boundary") == ""
    assert affinity_of({}, CHAT, b'\xef\xbb\xbf{"user": "u"}') == "session u"
