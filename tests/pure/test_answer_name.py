"""An answer has the model's name that the client asked for, wherever its stream is cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.api.answer_name import AnswerName

pytestmark = pytest.mark.pure

NAME, ALIAS = "team/llama", "openai/gpt:4o"
TEXTS = st.sampled_from(
    [NAME, f'"model":"{NAME}"', f'"model": "{NAME}"', "\\", '"', "model", '\\"model":', "x"]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    TEXTS | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS | st.text(), inner),
    max_leaves=12,
)


def renamed(value: Any) -> Any:
    """Expected answer: `value` with the model's name replaced by the alias, at any depth."""
    match value:
        case dict():
            return {k: ALIAS if (k, v) == ("model", NAME) else renamed(v) for k, v in value.items()}
        case list():
            return [renamed(one) for one in value]
    return value


def through(text: bytes, cuts: list[int]) -> list[bytes]:
    answer = AnswerName(NAME, ALIAS)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [*(answer.take(text[begin:end]) for begin, end in pairwise(places)), answer.rest()]


@given(VALUES, st.lists(st.integers(0, 200)), st.booleans())
def test_keys_are_renamed_and_no_text(value: Any, cuts: list[int], compact: bool) -> None:
    separators = (",", ":") if compact else (", ", ": ")
    text = json.dumps(value, separators=separators).encode()
    assert json.loads(b"".join(through(text, cuts))) == renamed(value)


@given(st.lists(VALUES, min_size=1), st.data())
def test_an_event_is_not_held_back(values: list[Any], data: st.DataObject) -> None:
    """Each whole event is passed on at once; it does not wait for the next one."""
    answer = AnswerName(NAME, ALIAS)
    for value in values:
        passed = answer.take(b"data: " + json.dumps(value).encode() + b"\n\n")
        assert passed.endswith(b"\n\n") and json.loads(passed[6:]) == renamed(value)
    assert answer.rest() == b""


@pytest.mark.parametrize("key", ["model", '"model', '\\"model', "amodel", "Model", "model "])
def test_only_that_key_is_renamed_wherever_it_is_cut(key: str) -> None:
    text = json.dumps({"a": 1, key: NAME, "z": "model"}, separators=(",", ":")).encode()
    told = {"a": 1, key: ALIAS if key == "model" else NAME, "z": "model"}
    for cut in range(len(text)):
        assert json.loads(b"".join(through(text, [cut]))) == told
    assert json.loads(b"".join(through(text, list(range(len(text)))))) == told


def test_what_only_begins_like_it_is_passed_on_in_the_end() -> None:
    answer = AnswerName(NAME, ALIAS)
    assert answer.take(b'{"model":"team/') == b"{"
    assert answer.rest() == b'"model":"team/'
