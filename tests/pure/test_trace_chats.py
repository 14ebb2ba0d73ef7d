"""Conversations of a trace: by their names, or each request by the one that it continues."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.config import Traffic
from mirage.workload.dealing import deal
from mirage.workload.formats import chats
from mirage.workload.trace import TraceError, read

pytestmark = pytest.mark.pure


@pytest.fixture
def sessions(tmp_path):
    def found(*rows: dict) -> list[str | None]:
        timed = [
            {"timestamp": n / 2, "input_length": 40, "output_length": 5} | row
            for n, row in enumerate(rows)
        ]
        path = tmp_path / "trace.jsonl"
        path.write_text("\n".join(map(json.dumps, timed)))
        return [request.session for request in read(path)]

    return found


def chat(number: object, parent: object = -1, **more: object) -> dict:
    return {"chat_id": number, "parent_chat_id": parent, "turn": 1, **more}


def test_turns_of_a_chat_are_one_session(sessions):
    assert sessions(chat(159), chat(7), chat(160, 159), chat(161, 160), chat(8, 7)) == [
        "159",
        "7",
        "159",
        "159",
        "7",
    ]


def test_chats_that_part_stay_with_the_first_one(sessions):
    assert sessions(chat(1), chat(2, 1), chat(3, 1), chat(4, 2), chat(5, 3)) == ["1"] * 5


def test_a_parent_before_the_trace_is_the_first_one_of_its_children(sessions):
    assert sessions(chat(159, 55), chat(160, 55), chat(161, 159)) == ["55"] * 3


def test_a_chat_without_answer_is_skipped_and_its_children_find_their_first_one(sessions):
    assert sessions(chat(1), chat(2, 1, output_length=0), chat(3, 2)) == ["1", "1"]


@pytest.mark.parametrize("none", [-1, "-1", None])
def test_a_chat_without_parent_is_a_first_one(sessions, none):
    assert sessions(chat(1, none), chat(2, 1), {"chat_id": 3}) == ["1", "1", "3"]


def test_numbers_and_texts_name_the_same_chats(sessions):
    assert sessions(chat("a"), chat(2, "a"), chat(3, "2"), chat(3, 3)) == ["a"] * 4


def test_a_session_that_the_file_names_comes_first(sessions):
    assert sessions(chat(1, session_id="s"), chat(2, 1, session_id="t"), chat(3, 2)) == [
        "s",
        "t",
        "t",
    ]


def test_rows_without_chats_have_no_session(sessions):
    assert sessions({}, {"turn": 2}, {"parent_chat_id": -1}) == [None] * 3


@pytest.mark.parametrize("key", ["chat_id", "parent_chat_id"])
@pytest.mark.parametrize("value", [True, [], {}, 1.5])
def test_a_chat_that_is_no_name_is_refused(sessions, key, value):
    with pytest.raises(TraceError, match=f"line 2: {key} .* expected a text or a number"):
        sessions(chat(1), chat(2, 1) | {key: value})


def test_few_chats_are_held_at_a_time(sessions, monkeypatch):
    monkeypatch.setattr(chats, "KEPT", 3)
    talk = [chat(n, n - 1 if n else -1) for n in range(20)]
    others = [chat(100 + n) for n in range(5)]
    assert sessions(*talk) == ["0"] * 20
    assert sessions(*talk, *others, chat(20, 19))[-1] == "19", "forgotten, so it begins anew"


def test_turns_of_a_chat_go_to_one_tenant(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [
        chat(n, n - 50 if n >= 50 else -1)
        | {"timestamp": n + 0.5, "input_length": 16, "output_length": 1, "hash_ids": [n]}
        for n in range(500)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    dealt = list(deal(read(path), ["a", "b"], Traffic(), 0))
    places = {request.session: set() for _, request in dealt}
    for tenant, request in dealt:
        places[request.session].add(tenant)
    assert len(places) == 50 and all(len(where) == 1 for where in places.values())
    assert {tenant for tenant, _ in dealt} == {"a", "b"}


@given(parents=st.lists(st.integers(0, 30), min_size=1, max_size=30))
def test_everyone_has_the_session_of_the_root(parents):
    known = chats.Chats()
    roots: dict[int, int] = {}
    for number, drawn in enumerate(parents):
        parent = drawn if drawn < number else -1
        roots[number] = roots[parent] if parent >= 0 else number
        assert known.session(chat(number, parent), "here") == str(roots[number])
