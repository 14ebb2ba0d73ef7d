"""Tokens that a request asks for, and those that its answer says it took."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.access.usage import AnswerUsage, OutputAsked, output_asked, prompt_guess
from mirage.serve.router.gate import Passage
from mirage.serve.router.key_metrics import TokenKind

pytestmark = pytest.mark.pure

USAGE = {"prompt_tokens": 7, "total_tokens": 12, "completion_tokens": 5}
OPENAI = {"id": "x", "choices": [{"text": "a"}], "usage": USAGE, "prompt_logprobs": None}
DETAILED = {
    "usage": {
        "prompt_tokens": 7,
        "total_tokens": 12,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 900},
        "completion_tokens_details": {"reasoning_tokens": 800},
    }
}
EVENTS = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 0}}},
    {"type": "content_block_delta", "delta": {"text": 'my "usage": {"output_tokens": 99}'}},
    {"type": "message_delta", "usage": {"input_tokens": 7, "output_tokens": 5}},
]


def stream(events: list[object]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


ANSWERS = {
    "OpenAI": json.dumps(OPENAI).encode(),
    "compact": json.dumps(OPENAI, separators=(",", ":")).encode(),
    "with details": json.dumps(DETAILED).encode(),
    "a stream with usage at its end": stream([{"choices": []}, {"choices": [], "usage": USAGE}]),
    "a stream that tells it all the time": stream(
        [{"usage": USAGE | {"completion_tokens": n, "total_tokens": 7 + n}} for n in range(6)]
    ),
    "Anthropic's stream": stream(EVENTS),
    "responses": stream([{"response": {"usage": {"input_tokens": 7, "output_tokens": 5}}}]),
    "what repeats a schema of the request": json.dumps(
        {"usage": USAGE, "tools": {"usage": {"prompt_tokens": 0, "completion_tokens": 0}}}
    ).encode(),
}


def read(chunks: list[bytes]) -> AnswerUsage:
    usage = AnswerUsage()
    for chunk in chunks:
        usage.look(chunk)
    return usage


@pytest.mark.parametrize("name", ANSWERS)
def test_usage_is_read_wherever_the_answer_is_cut(name: str) -> None:
    answer = ANSWERS[name]
    for size in range(1, len(answer) + 1):
        usage = read([answer[at : at + size] for at in range(0, len(answer), size)])
        assert (usage.known, usage.prompt, usage.completion) == (True, 7, 5), size


def test_a_sum_alone_is_of_prompts() -> None:
    usage = read([b'{"results": [], "usage": {"total_tokens": 12}}'])
    assert (usage.known, usage.prompt, usage.completion) == (True, 12, 0)


@given(st.text())
def test_no_text_is_taken_for_usage(text: str) -> None:
    told = {"choices": [{"text": text + '"usage": {"completion_tokens": 9}'}], "usage": None}
    assert not read([json.dumps(told).encode()]).known


def test_events_are_counted_where_none_is_told() -> None:
    usage = read([stream([{"choices": [{"text": "a"}]}] * 3) + b"data: [DONE]\n\n"])
    assert (usage.known, usage.events) == (False, 4)


PROMPT, COMPLETION, ESTIMATED = TokenKind
CLIENT_LEFT = 499


@pytest.mark.parametrize(
    ("answer", "sent", "status", "expected"),
    [
        (b"", False, CLIENT_LEFT, {}),
        (b"", True, 502, {}),
        (b"", True, CLIENT_LEFT, {ESTIMATED: 8}),
        (b"data: {}\n\n" * 3, True, 200, {ESTIMATED: 11}),
        (b"data: {}\n\n" * 3, True, CLIENT_LEFT, {ESTIMATED: 11}),
        (ANSWERS["OpenAI"], True, 200, {PROMPT: 7, COMPLETION: 5}),
        (stream(EVENTS[:1]) + stream(EVENTS[1:2]) * 8, True, 200, {PROMPT: 7, COMPLETION: 0}),
        (
            stream(EVENTS[:1]) + stream(EVENTS[1:2]) * 8,
            True,
            CLIENT_LEFT,
            {PROMPT: 7, COMPLETION: 9},
        ),
    ],
)
def test_tokens_of_a_request_by_what_is_known_of_it(
    answer: bytes, sent: bool, status: int, expected: dict[TokenKind, int]
) -> None:
    """Tokens are counted from the answer's `usage` where it has one, even if the client left the
    stream; otherwise they are estimated.
    """
    assert Passage("m", 8, [], read([answer]), sent).tokens(status) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (0, 1)),
        ({"max_tokens": 5}, (5, 1)),
        ({"max_tokens": 5, "max_completion_tokens": 3, "n": 2}, (3, 2)),
        ({"max_output_tokens": 8}, (8, 1)),
        ({"max_tokens": -5, "n": 0}, (0, 1)),
        ({"max_tokens": "5", "n": 1.5}, (0, 1)),
        ({"max_tokens": None}, (0, 1)),
        ({"max_tokens": 10**30}, (0, 1)),
        ([], (0, 1)),
    ],
)
def test_bounds_are_read_as_far_as_they_are_numbers(
    body: object, expected: tuple[int, int]
) -> None:
    assert output_asked(json.dumps(body).encode()) == expected


def test_what_is_no_json_has_no_bounds() -> None:
    assert output_asked(b'--x\r\n{"max_tokens": 5}') == OutputAsked()


def test_one_answer_is_no_longer_than_the_model_takes() -> None:
    assert OutputAsked(10**9, 3).most(256) == 768
    assert (prompt_guess(9, 256), prompt_guess(10**7, 256)) == (3, 256)
