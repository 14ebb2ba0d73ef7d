"""A stream's events are passed on whole, however it is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.api import anthropic
from mirage.serve.http.whole_events import MOST_BYTES, WholeEvents

pytestmark = pytest.mark.pure


@given(st.lists(st.text("\r\nab", max_size=9)), st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]))
def test_nothing_is_lost_and_all_but_the_rest_ends_with_an_event(
    pieces: list[str], end: str
) -> None:
    events = WholeEvents()
    chunks = [(piece + end).encode() for piece in pieces]
    passed = b"".join(events.take(bytes([byte])) for byte in b"".join(chunks) + b"half")
    assert not passed or passed.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
    assert not events.is_open
    assert passed + events.rest() == b"".join(chunks) + b"half"
    assert events.rest() == b""


def test_an_event_without_end_is_held_up_to_a_bound() -> None:
    events = WholeEvents()
    assert events.take(b"data: " + b"x" * (MOST_BYTES - 6)) == b""
    assert len(events.take(b"x")) == MOST_BYTES + 1
    assert events.is_open
    assert events.take(b"\n\nda") == b"\n\n"
    assert not events.is_open


@pytest.mark.parametrize(
    "body",
    [b"", b"no", b"[]", b'{"error": "x"}', b'{"error": {"message": 3}}', b'{"message": "m"}'],
)
def test_what_is_no_error_of_openais_stays(body: bytes) -> None:
    assert anthropic.translated(body, 400) == body
