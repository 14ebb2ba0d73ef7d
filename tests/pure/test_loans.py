"""Loans between tenants: what they cost and saved, against scenes whose truth is known."""

from __future__ import annotations

from typing import Any

import pytest

from mirage.control import loans
from mirage.control.lent import Lending
from mirage.control.loan_sums import LoanSums
from mirage.control.loans import REST, LoanBook
from mirage.control.moves import Kind, Reason
from mirage.protocol import Report

pytestmark = pytest.mark.pure

MIB = 1 << 20
BEYOND, RUNNING = Reason.GROWTH_BEYOND, Reason.RUNNING


def lending(
    lender: str, borrower: str, mib: int, kind: Kind = Kind.LAYERS, why: Reason = BEYOND
) -> Lending:
    return Lending(lender, borrower, kind, mib * MIB, why)


def report(**fields: Any) -> Report:
    held = {
        "held_bytes": 0,
        "layers_remapped": 0,
        "stream_slots": 0,
        "kv_extents": 0,
        "kv_used_extents": 0,
    }
    return Report(**{"revision": 1, "holds_turn": True, **held, **fields})


def sums(book: LoanBook, lender: str, borrower: str, now: float) -> LoanSums:
    return book.totals(now)[lender, borrower]


# -- time and bytes ----------------------------------------------------------------------


def test_a_loan_lasts_from_one_plan_to_the_next() -> None:
    book = LoanBook()
    book.planned([lending("chat", "code", 9), lending("chat", "code", 1, Kind.KV, RUNNING)], 10.0)
    book.planned([lending("chat", "code", 4)], 70.0)
    book.planned([lending("mail", "code", 2)], 100.0)
    lent = sums(book, "chat", "code", 130.0)
    assert (lent.lent_s, lent.byte_s) == (90.0, (60 * 10 + 30 * 4) * MIB)
    assert lent.most == {"layers": 9 * MIB, "KV memory": MIB}
    assert lent.reasons == {"growth beyond": 660 * MIB, "running": 60 * MIB}
    assert sums(book, "mail", "code", 130.0).lent_s == 30.0
    assert book.lent.keys() == {("mail", "code")}


def test_it_is_counted_by_minutes() -> None:
    book = LoanBook()
    book.planned([lending("chat", "code", 1)], 30.0)
    book.planned([], 150.0)
    every = book.last(1000.0, 200.0)
    assert [(one.minute, one.sums.lent_s) for one in every] == [(0, 30.0), (1, 60.0), (2, 30.0)]
    assert [one.minute for one in book.last(30.0, 200.0)] == [2]
    assert sum(one.sums.byte_s for one in every) == 120 * MIB


def test_a_minute_that_was_told_changes_no_more() -> None:
    book = LoanBook()
    book.planned([lending("chat", "code", 1)], 0.0)
    (told,) = book.last(60.0, 10.0)
    book.planned([lending("chat", "code", 8)], 20.0)
    assert (told.sums.lent_s, told.sums.most) == (10.0, {"layers": MIB})


def test_minutes_and_pairs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loans, "MOST_MINUTES", 3)
    monkeypatch.setattr(loans, "MOST_PAIRS", 2)
    book = LoanBook()
    book.planned([lending("chat", "code", 1)], 0.0)
    book.planned([], 300.0)
    assert [one.minute for one in book.last(1e6, 300.0)] == [2, 3, 4]
    assert book.kept_since == 120.0
    book.planned([lending("chat", name, 1) for name in ("mail", "web", "shop")], 300.0)
    book.planned([], 310.0)
    assert book.totals(310.0)[REST].lent_s == 20.0
    assert len(book.totals(310.0)) == 3


# -- cost --------------------------------------------------------------------------------


def test_a_wait_is_added_to_each_token_of_its_step() -> None:
    """Each of 100 steps of 4 sequences waits 2 ms for streamed layers. Each of the 400 decoded
    tokens costs 2 ms; tokens of prompts do not count.
    """
    book = LoanBook()
    book.reported("chat", report(stall_s=7.0, steps=50, tokens=500, running=4), 9, 0.0)
    book.planned([lending("chat", "code", 9)], 0.0)
    after = report(
        stall_s=7.2, steps=150, tokens=500 + 400 + 90, prefill_tokens=90, started=3, running=4
    )
    book.reported("chat", after, 9, 1.0)
    cost = sums(book, "chat", "code", 1.0)
    assert cost.wait_s == pytest.approx(0.2)
    assert cost.token_s / cost.tokens == pytest.approx(0.002)
    assert (cost.tokens, cost.requests) == (400, 4 + 3)


def test_a_wait_is_divided_by_what_is_streamed_for_whom() -> None:
    book = LoanBook()
    book.reported("chat", report(), 9, 0.0)
    lent = [
        lending("chat", "code", 6),
        lending("chat", "mail", 2),
        lending("chat", "chat", 2),
        lending("chat", "web", 9, Kind.KV),
    ]
    book.planned(lent, 0.0)
    book.reported("chat", report(stall_s=1.0, steps=10, tokens=10), 9, 1.0)
    waited = {borrower: sums(book, "chat", borrower, 1.0).wait_s for _, borrower in book.lent}
    assert waited == pytest.approx({"code": 0.6, "mail": 0.2, "chat": 0.2, "web": 0.0})
    assert sums(book, "chat", "web", 1.0).tokens == 0, "no step waits for idle memory"


def test_layers_on_their_way_back_still_cost() -> None:
    book = LoanBook()
    book.reported("chat", report(), 9, 0.0)
    book.planned([lending("chat", "code", 6)], 0.0)
    book.planned([], 1.0)
    book.reported("chat", report(stall_s=0.1, steps=1, tokens=2), 9, 2.0)
    book.reported("chat", report(stall_s=0.1, steps=2, tokens=4), 9, 3.0)
    cost = sums(book, "chat", "code", 9.0)
    assert (cost.wait_s, cost.tokens, cost.lent_s) == (0.1, 2, 1.0)


def test_a_report_between_two_steps_loses_no_wait() -> None:
    book = LoanBook()
    book.reported("chat", report(), 9, 0.0)
    book.planned([lending("chat", "code", 6)], 0.0)
    book.reported("chat", report(stall_s=0.1), 9, 1.0)
    book.reported("chat", report(stall_s=0.1, steps=1, tokens=1), 9, 2.0)
    assert sums(book, "chat", "code", 9.0).token_s == pytest.approx(0.1)


def test_an_engine_that_is_another_one_counts_anew() -> None:
    book = LoanBook()
    book.planned([lending("chat", "code", 6)], 0.0)
    book.reported("chat", report(stall_s=5.0, steps=100), 4, 1.0)
    book.reported("chat", report(stall_s=0.5, steps=10), 4, 2.0)
    assert sums(book, "chat", "code", 2.0).wait_s == 0.0
    book.lost("chat")
    book.reported("chat", report(stall_s=3.0, steps=20), 4, 3.0)
    book.reported("chat", report(stall_s=4.0, steps=30), 4, 4.0)
    assert sums(book, "chat", "code", 4.0).wait_s == 0.0, "it lends nothing until a plan says so"


# -- gain --------------------------------------------------------------------------------


def served(*reports: tuple[int, int], room: int = 8) -> LoanSums:
    """Sums of a loan to code whose engine reports each second (running requests, blocks that they
    use); its own share has room for `room` blocks.
    """
    book = LoanBook()
    book.planned([lending("chat", "code", 6)], 0.0)
    for now, (running, used) in enumerate(reports):
        book.reported("code", report(running=running, kv_used_blocks=used), room, float(now))
    return sums(book, "chat", "code", float(len(reports)))


def test_those_that_grow_beyond_the_share_were_not_preempted() -> None:
    """Twelve running requests grow from six to twelve blocks, where the share has room for eight.
    The loan saved four preemptions and no wait.
    """
    gain = served((12, 6), (12, 9), (12, 12), (12, 12), (0, 0))
    assert (gain.preemptions, gain.waits) == (4, 0)
    assert gain.request_s == pytest.approx(12 * (1 - 8 / 9) + 4 + 4)


def test_those_that_begin_beyond_it_did_not_wait() -> None:
    gain = served((8, 8), (12, 12), (4, 4), (10, 10), (0, 0))
    assert (gain.preemptions, gain.waits) == (0, 4 + 2)


def test_within_the_share_nothing_is_saved() -> None:
    gain = served((8, 8), (2, 2), (8, 7))
    assert gain.preemptions == gain.waits == gain.request_s == 0


def test_a_number_that_wavers_is_one_request() -> None:
    """The number of requests beyond the share's room wavers around three as blocks are freed and
    used again. Three are counted, not a new one each time.
    """
    gain = served((4, 4), (12, 11), (12, 10), (12, 11), (12, 10), (12, 11), room=8)
    assert gain.waits + gain.preemptions == 3


def test_a_gain_is_divided_by_who_lends() -> None:
    book = LoanBook()
    book.planned([lending("chat", "code", 6), lending("code", "code", 2)], 0.0)
    book.reported("code", report(running=8, kv_used_blocks=8), 8, 0.0)
    book.reported("code", report(running=12, kv_used_blocks=12), 8, 1.0)
    assert sums(book, "chat", "code", 1.0).waits == 3.0
    assert sums(book, "code", "code", 1.0).waits == 1.0


def test_a_model_without_a_cache_saves_nothing() -> None:
    book = LoanBook()
    book.reported("code", report(running=2), 0, 0.0)
    book.reported("code", report(running=4), 0, 1.0)
    assert not book.totals(1.0)


def test_of_a_removed_tenant_nothing_stays() -> None:
    book = LoanBook()
    book.reported("chat", report(), 8, 0.0)
    book.planned([lending("chat", "code", 6), lending("web", "mail", 2)], 0.0)
    book.forget("code")
    book.reported("chat", report(stall_s=1.0, steps=5), 8, 1.0)
    book.planned([], 2.0)
    assert book.totals(2.0).keys() == {("web", "mail")}
    assert {one.pair for one in book.last(9.0, 2.0)} == {("web", "mail")}
