"""One streamed completion, however its bytes are cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.tools.replay.stream import StreamedAnswer, StreamError, error_message

pytestmark = pytest.mark.pure


def event(**body) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def token(text: str, *ids: int) -> bytes:
    return event(choices=[{"text": text, "token_ids": list(ids)}])


USAGE = event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3})
DONE = b"data: [DONE]\n\n"
STREAM = token("ä", 1) + token("", 2) + b": ping\n\n" + token("c", 3) + USAGE + DONE


def test_times_text_and_counts():
    answer = StreamedAnswer(sent_at=10.0)
    answer.feed(token("a", 5), 10.5)
    answer.feed(token("b", 6), 10.75)
    answer.feed(token("c", 7), 11.5)
    answer.feed(USAGE + DONE, 20.0)
    answer.close()
    assert (answer.ttft_s, answer.e2el_s, answer.itl_s) == (0.5, 1.5, [0.25, 0.75])
    assert (answer.text, answer.token_ids) == ("abc", [5, 6, 7])
    assert (answer.prompt_tokens, answer.output_tokens) == (7, 3)


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=30), windows=st.booleans())
def test_any_cut_reads_the_same(cuts, windows):
    answer = StreamedAnswer(0.0)
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(edges):
        part = STREAM[start:end]
        answer.feed(part.replace(b"\n", b"\r\n") if windows else part, 1.0)
    answer.close()
    assert (answer.text, answer.token_ids, answer.output_tokens) == ("äc", [1, 2, 3], 3)


@pytest.mark.parametrize(("ids", "tokens"), [(((1,), (2,)), 2), (((), ()), 2), (((1, 2), (3,)), 3)])
def test_without_usage_tokens_are_counted(ids, tokens):
    answer = StreamedAnswer(0.0)
    answer.feed(b"".join(token("x", *some) for some in ids) + DONE, 1.0)
    answer.close()
    assert answer.output_tokens == tokens


def test_a_stream_that_breaks_off():
    answer = StreamedAnswer(0.0)
    answer.feed(token("a", 1) + token("b", 2) + b'data: {"choi', 1.0)
    with pytest.raises(StreamError, match="broke off after 2 tokens"):
        answer.close()


def test_a_stream_without_tokens():
    answer = StreamedAnswer(0.0)
    answer.feed(USAGE + DONE, 1.0)
    with pytest.raises(StreamError, match="no token"):
        answer.close()


def test_an_error_in_the_stream():
    with pytest.raises(StreamError, match="engine is dead"):
        StreamedAnswer(0.0).feed(event(error={"message": "engine is dead", "code": 500}), 1.0)


@pytest.mark.parametrize(
    "payload",
    [
        b"data: {oops\n",
        b"data: 17\n",
        b"data: \xff\n",
        event(usage=5),
        event(usage={"prompt_tokens": "7"}),
        event(choices=5),
        event(choices=[1]),
        event(choices=[{"text": 5}]),
        event(choices=[{"text": "a", "token_ids": 5}]),
    ],
)
def test_an_event_that_is_none(payload):
    with pytest.raises(StreamError, match="not an event of the API"):
        StreamedAnswer(0.0).feed(payload, 1.0)


def test_fields_without_a_value_are_left_out_fields():
    answer = StreamedAnswer(0.0)
    answer.feed(event(choices=None, usage=None, error=None) + token("a", 1) + DONE, 1.0)
    answer.close()
    assert (answer.text, answer.output_tokens) == ("a", 1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "no such model"}}, "no such model"),
        ({"error": "too long"}, "too long"),
        ({"message": "gone"}, "gone"),
        ({"detail": 1}, "{'detail': 1}"),
    ],
)
def test_error_messages(body, message):
    assert error_message(body) == message
