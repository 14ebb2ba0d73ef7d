"""Comparison of answers of pretrained models: the first token in which two differ, and whether
rounding explains it.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.real.chats import NEXT, TOPICS, body, first_words
from tests.real.judging import ROUNDING, Fork, Said, beginning, faults, fork, forks, said, widest
from tests.real.models import GEMMA, SMOLLM

pytestmark = pytest.mark.pure

ONE = Said("abc", ("a", "b", "c"), ({"a": -0.1, "x": -3.0}, {"b": -0.7, "y": -0.75}, {"c": -0.1}))


def test_equal_answers_have_no_fork() -> None:
    assert fork(ONE, ONE) is None
    assert widest([]) == 0


def test_only_the_first_difference_counts() -> None:
    other = Said("ayz", ("a", "y", "z"), ({}, {}, {}))
    assert fork(ONE, other) == Fork(1, pytest.approx(0.05))


@pytest.mark.parametrize(("tokens", "place"), [(("a", "z", "c"), 1), (("a", "b"), 2), ((), 0)])
def test_what_was_not_likely_and_what_just_ends_is_no_tie(
    tokens: tuple[str, ...], place: int
) -> None:
    other = Said("", tokens, tuple({} for _ in tokens))
    assert fork(ONE, other) == Fork(place, math.inf)


def test_the_widest_of_many() -> None:
    near, far = Said("", ("a", "y"), ({}, {})), Said("", ("x", "b"), ({}, {}))
    found = forks([ONE, ONE, ONE], [ONE, near, far])
    assert len(found) == 2
    assert widest(found) == pytest.approx(2.9)
    with pytest.raises(ValueError):
        forks([ONE], [])


def test_a_lead_that_rounding_turns_is_no_fault() -> None:
    other = Said("ayz", ("a", "y", "z"), ({}, {}, {}))
    assert len(faults([ONE], [other], "float32")) == 1
    assert faults([ONE], [other], "bfloat16") == []
    cut = beginning(ONE, 2)
    assert all(faults([ONE], [cut], dtype) for dtype in ROUNDING)


def test_chats_and_completions_are_read_alike() -> None:
    likely = [{"token": "a", "logprob": -0.1}, {"token": "x", "logprob": -3.0}]
    content = [{"token": "a", "logprob": -0.1, "top_logprobs": likely}]
    chat = {"message": {"content": "A"}, "logprobs": {"content": content}}
    told: dict[str, Any] = {"tokens": ["a"], "top_logprobs": [{"a": -0.1, "x": -3.0}]}
    assert said(chat) == said({"text": "A", "logprobs": told})


def test_each_turn_has_the_answers_before_it() -> None:
    assert len(set(TOPICS)) == 24
    path, third = body(SMOLLM, TOPICS[0], ["one", "two"], 8)
    assert path == "/v1/chat/completions"
    words = [message["content"] for message in third["messages"][1:]]
    assert words == [first_words(TOPICS[0]), "one", NEXT[0], "two", NEXT[1]]
    path, second = body(GEMMA, TOPICS[0], [" one"], 8)
    assert path == "/v1/completions"
    first = f"<bos>Question: {first_words(TOPICS[0])}\nAnswer: one\n"
    assert second["prompt"] == f"{first}Question: {NEXT[0]}\nAnswer:"
