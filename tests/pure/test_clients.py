"""Limits of one client: times, connections, bytes, ids."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mirage.config import HttpSection
from mirage.serve.api.openai import ApiError
from mirage.serve.clients.bare_answer import bare
from mirage.serve.clients.body_budget import BodyBudget, BodyRoom
from mirage.serve.clients.crowd import Crowd
from mirage.serve.clients.front import SPARE_FILES, ClientFront
from mirage.serve.clients.patience import body_until
from mirage.serve.http.request_id import SANE, id_of, new_id
from mirage.units import KIB, MIB

pytestmark = pytest.mark.pure
HTTP = HttpSection()


def test_the_defaults_are_those_that_are_told() -> None:
    assert (HTTP.head_s, HTTP.body_s, HTTP.body_rate, HTTP.idle_s) == (10, 30, 64 * KIB, 75)
    assert (HTTP.body_bytes, HTTP.stream_quiet_s) == (256 * MIB, 15)
    assert (HTTP.connections, HTTP.connections_per_peer) == (8192, 4096)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"head_s": 0}, "greater than 0"),
        ({"idle_s": "75"}, "valid number"),
        ({"connections": 0}, "greater than 0"),
        (
            {"body_bytes": "1MiB"},
            "body_bytes is 1048576, and one body may have 67108864: use 64MiB",
        ),
        ({"stream_quiet_s": 0}, "greater than 0"),
        ({"heads": 1}, "not permitted"),
    ],
)
def test_what_cannot_be_is_refused(raw: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        HttpSection.model_validate(raw)


def test_a_stream_may_get_no_comments() -> None:
    assert HttpSection.model_validate({"stream_quiet_s": "never"}).stream_quiet_s is None
    assert HttpSection.model_validate({"stream_quiet_s": "1m"}).stream_quiet_s == 60


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, MIB)), max_size=30))
def test_who_sends_as_fast_as_it_has_to_is_never_late(steps: list[tuple[float, int]]) -> None:
    """A client that sends a body piece by piece is late exactly if, after the first `body_s`
    seconds, it has sent fewer bytes than the least rate demands.
    """
    now, read = 5.0, 0
    for seconds, piece in steps:
        least = (now + seconds - 5.0 - HTTP.body_s) * HTTP.body_rate
        if read < least:
            assert now + seconds > body_until(5.0, read, HTTP) - 1e-6
        else:
            assert now + seconds <= body_until(5.0, read, HTTP) + 1e-6
        now, read = now + seconds, read + piece


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_a_crowd_is_never_too_large(steps: list[tuple[str, bool]]) -> None:
    crowd, there = Crowd(4, 2), list[str]()
    for peer, comes in steps:
        if not comes and peer in there:
            crowd.goes(peer)
            there.remove(peer)
        elif comes:
            limit = "all" if len(there) == 4 else "peer" if there.count(peer) == 2 else ""
            assert crowd.refuses(peer) == limit
            if not limit:
                crowd.comes(peer)
                there.append(peer)
        assert crowd.count == len(there)


def is_refused(room: BodyRoom, wanted: int) -> bool:
    try:
        room.needs(wanted)
    except ApiError as error:
        assert (error.status, error.headers["Retry-After"]) == (503, "1")
        return True
    return False


def test_there_are_no_more_connections_than_files_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of connections follows from the limit of open files, because each may need two:
    the client's socket and the engine's.
    """
    for files, most in ((1024, (1024 - SPARE_FILES) // 2), (64, 1), (1 << 20, 8192)):
        monkeypatch.setattr("mirage.serve.clients.front.raise_limit", lambda wanted, n=files: n)
        assert ClientFront(HTTP).crowd.most == most


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.booleans()), max_size=60))
def test_a_budget_is_what_its_rooms_have(steps: list[tuple[int, int, bool]]) -> None:
    budget = BodyBudget(10)
    rooms = [budget.room() for _ in range(5)]
    refusals = 0
    for n, wanted, ends in steps:
        others = sum(room.bytes for room in rooms) - rooms[n].bytes
        if ends:
            with rooms[n]:
                pass
            assert rooms[n].bytes == 0
        else:
            refused = is_refused(rooms[n], wanted)
            assert refused is (wanted > rooms[n].bytes and others + wanted > 10)
            refusals += refused
        assert budget.held == sum(room.bytes for room in rooms) <= 10
    assert budget.refused == refusals


def test_what_is_held_already_counts_whatever_room_there_is() -> None:
    budget = BodyBudget(10)
    with budget.room() as one, budget.room() as other:
        one.is_now(12)
        assert (budget.held, is_refused(other, 1)) == (12, True)
    assert budget.held == 0


@given(st.text(max_size=200) | st.from_regex(SANE, fullmatch=True))
def test_an_id_is_taken_if_it_is_sane(given_id: str) -> None:
    sane = 1 <= len(given_id) <= 128 and all(
        letter.isascii() and (letter.isalnum() or letter in "_.:-") for letter in given_id
    )
    assert id_of(given_id, lambda: "made") == (given_id if sane else "made")


def test_an_id_that_is_made_is_sane_and_nobody_elses() -> None:
    made = {new_id() for _ in range(1000)}
    assert len(made) == 1000 and all(map(SANE.fullmatch, made))
    assert id_of(None, lambda: "made") == "made"


def test_an_answer_without_a_request_is_whole() -> None:
    told = bare(ApiError(503, "a\r\nb", wait_s=1.2), "mirage", "x")
    head, body = told.split(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first == "HTTP/1.1 503 Service Unavailable"
    headers = dict(line.split(": ") for line in lines)
    assert (headers["Retry-After"], headers["Connection"]) == ("2", "close")
    assert int(headers["Content-Length"]) == len(body)
    assert json.loads(body)["error"]["message"] == "a\r\nb"
