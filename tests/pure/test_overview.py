"""One device at a glance: memory by role, rates, latencies, decisions in words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_loans import lending, report

from mirage.control.lent import NOBODY
from mirage.control.loan_changes import LoanChange
from mirage.control.loans import LoanBook
from mirage.control.moves import Kind, Reason
from mirage.protocol import ModelShape, Report
from mirage.serve.admin.forms import StateChange
from mirage.serve.admin.overviewing import MOST_DECISIONS, decided, state_decision
from mirage.serve.overview.decisions import loan_decisions
from mirage.serve.overview.forms import Decision, EngineRates, RoleBytes
from mirage.serve.overview.latencies import LATELY_S, MOST, latencies
from mirage.serve.overview.memory import by_role
from mirage.serve.overview.pace import KEPT, EnginePace
from mirage.serve.whatif.past import NO_STREAM, EndedRequest, PastRequests

pytestmark = pytest.mark.pure

MIB = 1 << 20
SHAPE = ModelShape(4, 2 * MIB, MIB, MIB, 4, 16, 40, 1, 4)
"""Extents of four blocks, a MiB each."""


# -- memory ------------------------------------------------------------------------------


def test_each_role_has_its_bytes() -> None:
    told = report(held_bytes=9 * MIB, kv_extents=4, kv_used_blocks=6, kv_cached_blocks=4)
    assert by_role(9 * MIB, told, SHAPE) == RoleBytes(
        weights=5 * MIB, kv_used=3 * MIB // 2, kv_cached=MIB, kv_free=3 * MIB // 2
    )
    assert by_role(7, None, SHAPE) == by_role(7, told, None) == RoleBytes(weights=7)


@given(*(st.integers(0, 60) for _ in range(4)))
def test_roles_are_all_that_is_held(held: int, extents: int, used: int, cached: int) -> None:
    told = report(kv_extents=extents, kv_used_blocks=used, kv_cached_blocks=cached)
    parts = by_role(held * MIB, told, SHAPE)
    every = (parts.weights, parts.kv_used, parts.kv_cached, parts.kv_free)
    assert sum(every) == held * MIB and min(every) >= 0


# -- rates -------------------------------------------------------------------------------


def counted(started: int, tokens: int, prefill: int) -> Report:
    return report(started=started, tokens=tokens, prefill_tokens=prefill)


def test_rates_are_those_of_the_last_seconds() -> None:
    pace = EnginePace()
    assert pace.rates("a") is None
    pace.look(0.0, {"a": counted(0, 0, 0)})
    pace.look(0.1, {"a": counted(1000, 1000, 1000)})  # sooner than it is kept
    assert pace.rates("a") is None
    pace.look(2.0, {"a": counted(3, 100, 20), "b": counted(5, 5, 5)})
    assert pace.rates("a") == EngineRates(1.5, 40.0, 10.0)
    assert pace.rates("b") is None
    for second in range(KEPT):
        pace.look(3.0 + second, {"a": counted(3, 100, 20)})
    assert pace.rates("a") == EngineRates(0.0, 0.0, 0.0)


def test_another_engine_counts_anew() -> None:
    pace = EnginePace()
    for t, tokens in ((0.0, 500), (1.0, 900), (2.0, 10), (3.0, 30)):
        pace.look(t, {"a": counted(0, tokens, 0)})
    assert pace.rates("a") == EngineRates(0.0, 20.0, 0.0)
    pace.look(4.0, {})
    assert pace.rates("a") is None
    pace.look(5.0, {"a": counted(0, 40, 0)})
    assert pace.rates("a") is None, "an engine was gone in between"


# -- latencies ---------------------------------------------------------------------------


def test_latencies_are_of_streams_that_ended_in_the_last_minute() -> None:
    past = PastRequests()
    old = EndedRequest(0.0, 9, 9, 99.0, 99.9)
    past.add("a", old.row, 0, 100.0)
    some = [EndedRequest(150.0, 9, 11, n / 100, n / 100 + n / 10) for n in range(1, 101)]
    past.add("a", b"".join(one.row for one in some), 0, 150.0)
    past.add("b", EndedRequest(150.0, 9, 1, NO_STREAM, 2.0).row, 0, 160.0)
    past.add("c", b"", 0, 160.0)
    found = latencies(past.chunks, 100.0 + LATELY_S)
    assert found["a"].requests == 100 and found["b"].requests == 1 and "c" not in found
    assert found["a"].ttft_p50_s == pytest.approx(0.50)
    assert found["a"].ttft_p99_s == pytest.approx(0.99)
    assert found["a"].tpot_p50_s == pytest.approx(0.5)
    assert found["a"].tpot_p99_s == pytest.approx(0.99)
    assert (found["b"].ttft_p50_s, found["b"].tpot_p99_s) == (None, None)


def test_a_stream_of_one_token_has_no_time_per_token() -> None:
    past = PastRequests()
    past.add("a", EndedRequest(0.0, 9, 1, 0.5, 0.5).row, 0, 1.0)
    (found,) = latencies(past.chunks, 1.0).values()
    assert (found.ttft_p50_s, found.tpot_p50_s) == (0.5, None)


def test_the_newest_requests_are_looked_at_and_no_more() -> None:
    past = PastRequests()
    for first_s, count in ((9.0, MOST), (1.0, MOST - 100), (2.0, 100)):
        past.add("a", EndedRequest(0.0, 1, 2, first_s, 10.0).row * count, 0, 1.0)
    found = latencies(past.chunks, 1.0)["a"]
    assert (found.requests, found.ttft_p50_s, found.ttft_p99_s) == (MOST, 1.0, 2.0)


# -- decisions ---------------------------------------------------------------------------


def test_a_loan_is_told_when_it_begins_and_when_it_ends() -> None:
    book = LoanBook()
    book.planned([lending("chat", "code", 9), lending("chat", "code", 1, Kind.KV)], 10.0)
    book.planned([lending("chat", "code", 4), lending("mail", "mail", 2)], 20.0)
    book.planned([lending(NOBODY, "mail", 3, Kind.FREE)], 30.0)
    told = [one for change in book.changes for one in loan_decisions([change], 1000.0)]
    assert [(one.t, one.tenant, one.text) for one in told] == [
        (1010.0, "code", "chat lends code 10.0 MiB of layers"),
        (1020.0, "mail", "mail gives 2.0 MiB of layers for its own requests"),
        (1030.0, "code", "code has given chat 4.0 MiB of layers back"),
        (1030.0, "mail", "mail has its 2.0 MiB of layers back"),
        (1030.0, "mail", "mail has 3.0 MiB of free memory beyond its share"),
    ]
    assert [one.why for one in told] == [
        *(2 * [Reason.GROWTH_BEYOND.sentence]),
        *("", "", Reason.GROWTH_BEYOND.sentence),
    ]
    book.forget("mail")
    assert {change.borrower for change in book.changes} == {"code"}


def test_idle_memory_that_is_lent_is_called_so() -> None:
    change = LoanChange(1.0, "a", "b", MIB, Kind.KV, Reason.GROWTH, True)
    (told,) = loan_decisions([change], 0.0)
    assert told.text == "a lends b 1.0 MiB of idle KV memory"


def test_a_loan_that_comes_and_goes_is_one_line() -> None:
    book = LoanBook()
    for t in range(10):
        book.planned([lending("chat", "code", 1 + t)] if t % 2 else [], 10.0 + t)
    book.planned([lending("chat", "code", 10), lending("mail", "code", 1)], 21.0)
    told = loan_decisions(book.changes, 0.0)
    assert [(one.t, one.text) for one in told] == [
        (19.0, "chat lends code 10.0 MiB of layers, after 8 changes in 8 s"),
        (21.0, "mail lends code 1.0 MiB of layers"),
    ]
    told = loan_decisions(list(book.changes)[:2], 0.0)
    assert [one.text for one in told] == [
        "code has given chat 2.0 MiB of layers back, after 1 change in 1 s"
    ]


def changed(before: str, state: str, **fields: Any) -> StateChange:
    return StateChange(t=5.0, tenant="a", before=before, state=state, revision=1, **fields)


def test_reasons_of_states_are_for_those_who_may_read_logs() -> None:
    change = changed("ready", "down", reason="/srv/model: it died")
    near, far = (state_decision(change, reasons=reasons) for reasons in (True, False))
    assert near.text == far.text == "a is down, and was ready"
    assert (near.why, far.why) == ("/srv/model: it died", "")
    assert state_decision(changed("ready", "ready", removed=True), reasons=True).text == (
        "a is removed"
    )


def test_the_newest_decisions_come_first() -> None:
    loans = [Decision(100.0 + t, "a", str(t)) for t in range(2 * MOST_DECISIONS)]
    states = [Decision(1.0, "b", "old"), Decision(200.0, "b", "new")]
    found = decided(loans, states)
    assert [one.text for one in found[:2]] == ["new", str(len(loans) - 1)]
    assert found[-1].text == "old" and len(found) == MOST_DECISIONS + 2
