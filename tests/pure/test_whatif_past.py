"""Lengths and times of the last hour's requests: rows, pages, and the time that they stay."""

from __future__ import annotations

import asyncio
from math import inf, nan
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.config import Policy
from mirage.protocol import Report
from mirage.serve.access.usage import AnswerUsage
from mirage.serve.api.openai import ApiError
from mirage.serve.registry.registry import Registry, TenantServer
from mirage.serve.router.gate import Passage
from mirage.serve.whatif.forms import PastTold
from mirage.serve.whatif.past import (
    LARGEST,
    ROW,
    EndedRequest,
    PastRequests,
    UntoldRequests,
    preempted_in,
    requests_in,
)
from mirage.serve.whatif.route import answer, encoded

pytestmark = pytest.mark.pure


def ended(number: int) -> EndedRequest:
    return EndedRequest(float(number), number, 2 * number, 0.5, 1.5)


def rows(*numbers: int) -> bytes:
    return b"".join(ended(number).row for number in numbers)


def all_of(past: PastRequests, limit: int, now: float = 0.0) -> list[tuple[str, int]]:
    """Tenant and prompt length of all rows, read page by page."""
    found: list[tuple[str, int]] = []
    since: int | None = 0
    while since is not None:
        page = past.page(since, limit, now)
        some = [(name, one.prompt) for name, packed in page.parts for one in requests_in(packed)]
        assert len(some) <= limit
        found += some
        since = page.next_since
    return found


# -- a row ------------------------------------------------------------------------------


def test_a_row_has_lengths_and_times_alone() -> None:
    (one,) = requests_in(EndedRequest(9e6, 7, 5, 0.25, 2.5, counted=False).row)
    assert one == (9e6, 7, 5, 0.25, 2.5, False) and one.streamed
    assert EndedRequest._fields == (
        *("arrival_s", "prompt", "output", "first_s", "whole_s", "counted"),
    )


def test_odd_lengths_do_not_break_a_row() -> None:
    (one,) = requests_in(EndedRequest(1.0, 10**15, -1, nan, inf).row)
    assert (one.prompt, one.output, one.streamed) == (LARGEST, 0, False)


def test_what_nobody_takes_is_bounded() -> None:
    untold = UntoldRequests(3)
    for number in range(5):
        untold.add(ended(number))
    assert [one.prompt for one in requests_in(untold.take())] == [2, 3, 4]
    assert untold.take() == b""


# -- what a request leaves --------------------------------------------------------------


def passed(chunks: bytes, status: int = 200, first: float = 0.0) -> list[EndedRequest]:
    usage = AnswerUsage()
    usage.look(chunks)
    one = Passage("m", 8, [], usage, sent=True, since=10.0, first=first)
    one.note(one.tokens(status), 14.0)
    return list(requests_in(one.untold.take()))


def test_a_request_leaves_what_its_answer_told() -> None:
    told = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 5}}'
    (one,) = passed(told)
    assert (one.prompt, one.output, one.whole_s) == (7, 5, 4.0)
    assert one.counted and not one.streamed


def test_a_stream_leaves_when_it_began_and_guesses_without_usage() -> None:
    (one,) = passed(b"data: {}\n\n" * 3, first=11.0)
    assert one == (10.0, 8, 3, 1.0, 4.0, False)
    (left,) = passed(b"data: {}\n\n" * 2, status=499, first=11.0)
    assert left.output == 2


def test_a_request_that_failed_or_was_none_for_tokens_leaves_nothing() -> None:
    assert passed(b"", status=502) == []
    assert passed(b'{"tokens": [1, 2]}') == []


# -- the hour ---------------------------------------------------------------------------


@given(
    chunks=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5)), max_size=12),
    limit=st.integers(1, 7),
)
def test_pages_of_any_length_are_all_rows(chunks: list[tuple[str, int]], limit: int) -> None:
    past, number, expected = PastRequests(), 0, []
    for name, count in chunks:
        past.add(name, rows(*range(number, number + count)), 0, 0.0)
        expected += [(name, n) for n in range(number, number + count)]
        number += count
    assert all_of(past, limit) == expected


def test_rows_stay_for_an_hour() -> None:
    past = PastRequests(span_s=100.0)
    past.add("a", rows(1), 0, 0.0)
    past.add("a", rows(2), 0, 60.0)
    assert [n for _, n in all_of(past, 10, 99.0)] == [1, 2]
    assert [n for _, n in all_of(past, 10, 100.0)] == [2]
    assert all_of(past, 10, 160.0) == []


@given(st.lists(st.integers(1, 40), max_size=20))
def test_there_are_never_more_rows_than_may_be(counts: list[int]) -> None:
    past = PastRequests(most=50)
    for count in counts:
        past.add("a", rows(*range(count)), 0, 0.0)
        assert len(all_of(past, 1000)) <= 50
        assert len(all_of(past, 1000)) >= min(count, 50)


def test_a_cursor_goes_on_after_rows_have_gone() -> None:
    past = PastRequests(span_s=10.0)
    past.add("a", rows(1, 2, 3), 0, 0.0)
    cursor = past.page(0, 2, 0.0).next_since
    assert cursor == 2
    past.add("a", rows(4), 0, 10.0)
    page = past.page(cursor, 2, 10.0)
    assert page.parts == [("a", rows(4))] and page.next_since is None


def test_what_is_forgotten_is_gone() -> None:
    past = PastRequests()
    past.add("a", rows(1), 0, 0.0)
    past.add("b", rows(2), 0, 0.0)
    past.add("a", rows(3), 0, 0.0)
    past.forget("a")
    assert all_of(past, 1) == [("b", 2)]


def test_preemptions_are_those_since_the_first_rows_also_of_engines_that_start_anew() -> None:
    past = PastRequests()
    for tenant, count in [("a", 5), ("b", 1), ("a", 9), ("a", 2), ("a", 3), ("b", 1)]:
        past.add(tenant, rows(1), count, 0.0)
    assert preempted_in(past.chunks) == {"a": (9 - 5) + 2 + 1, "b": 0}


# -- the server's books -----------------------------------------------------------------


def registry() -> Registry:
    backends = {"a": TenantServer("a", SimpleNamespace(), 256)}  # type: ignore[arg-type]
    return Registry(Policy.MIRAGE, 1 << 30, backends)


def report(**fields: float) -> Report:
    return Report(0, True, 0, 0, 0, 0, 0, **fields)  # type: ignore[arg-type]


def test_rows_of_a_tenant_that_is_not_there_are_dropped() -> None:
    known = registry()
    known.ended("b", rows(1), 0.0)
    assert all_of(known.past, 10) == []


def test_an_engine_that_is_gone_has_left_its_steps() -> None:
    known = registry()
    assert known.measured("a") is None
    known.reports["a"] = old = report(step_s=0.01, preemptions=4)
    known.lost("a")
    known.reports["a"] = report()
    assert known.measured("a") == old
    known.reports["a"] = new = report(step_s=0.02)
    assert known.measured("a") == new
    known.ended("a", rows(1), 0.0)
    known.forget("a")
    assert known.measured("a") is None and all_of(known.past, 10) == []


# -- the route --------------------------------------------------------------------------


def test_a_page_says_times_since_1970_and_no_time_of_what_was_no_stream() -> None:
    past = PastRequests()
    past.add("a", EndedRequest(5.0, 7, 3, nan, 1.5, counted=False).row, 0, 0.0)
    told = msgspec.json.decode(encoded(past.page(0, 10, 0.0), 1000.0), type=PastTold)
    assert told.next_since is None
    assert msgspec.to_builtins(told.requests) == [
        {
            "tenant": "a",
            "t": 1005.0,
            "prompt": 7,
            "output": 3,
            "first_s": None,
            "whole_s": 1.5,
            "counted": False,
        }
    ]


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "5001"}, {"since": "-1"}])
def test_a_page_is_bounded(query: dict[str, str]) -> None:
    request = SimpleNamespace(query=query)
    with pytest.raises(ApiError, match=next(iter(query))):
        asyncio.run(answer(PastRequests(), request))  # type: ignore[arg-type]


def test_an_hour_is_small() -> None:
    """A row takes 25 bytes, so a hundred thousand requests take 2.5 MB."""
    assert ROW.size == 25
