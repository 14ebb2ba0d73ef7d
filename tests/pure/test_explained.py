"""Explanations of `mirage why` for loans whose figures are known, and their division into pages."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from test_loans import MIB, lending, report

from mirage.control.loans import LoanBook
from mirage.control.moves import FREE, Kind, Move, Place, Reason
from mirage.serve.admin.explained import explanation, moved, sentence
from mirage.serve.admin.explaining import LoansFound, told
from mirage.serve.admin.forms import LoanTold
from mirage.serve.registry.registry import moved as moved_form

pytestmark = pytest.mark.pure

T = 1_795_000_000.0
MOVE = Move(
    "code",
    Place(Kind.LAYERS, "chat"),
    Place(Kind.KV, "code"),
    27 * MIB,
    Reason.GROWTH_BEYOND,
)


def found(book: LoanBook, now: float, **changes: Any) -> LoansFound:
    layer_bytes = {"chat": 3 * MIB, "code": MIB, "mail": MIB}
    lent = dict(book.lent)
    asked = LoansFound(None, T, T - 900, T - 900, [], book.last(1e6, now), lent, layer_bytes, 0, 99)
    return asked._replace(**changes)


def scene() -> LoanBook:
    """Loan of nine layers from chat to code for four minutes, in which chat decodes 40,000 tokens.

    Each of chat's 10,000 steps waits 0.8 ms for streamed layers. Twelve of its requests run when
    the loan begins, and 200 begin later. Forty sequences of code grow from nine blocks in all, for
    which its own share has room, to forty.
    """
    book = LoanBook()
    book.reported("chat", report(running=12), 99, 0.0)
    book.reported("code", report(running=40, kv_used_blocks=9), 9, 0.0)
    book.planned([lending("chat", "code", 27)], 0.0)
    for second in range(1, 241):
        part = second / 240
        counted = {"stall_s": 8.0 * part, "steps": round(10_000 * part), "tokens": second * 200}
        counted |= {"prefill_tokens": second * 200 - round(40_000 * part)}
        own = report(**counted, started=round(200 * part), running=4)
        book.reported("chat", own, 99, float(second))
        used = min(40, 9 + second)
        book.reported("code", report(running=40, kv_used_blocks=used), 9, float(second))
    book.planned([], 240.0)
    return book


def test_the_sentence_says_what_was_so() -> None:
    (loan,) = told(found(scene(), 300.0)).loans
    assert loan.lent_s == 240.0 and loan.tokens == 40_000
    assert loan.wait_s == pytest.approx(8.0) and loan.token_s == pytest.approx(32.0, rel=1e-3)
    assert sentence(loan) == (
        "chat lent code up to 9 layers (27.0 MiB) for 4 min (growth beyond): "
        "+0.8 ms a token on 212 requests; code saved about 31 preemptions"
    )


def test_all_of_it() -> None:
    book = scene()
    book.planned([lending("mail", "code", 2, Kind.KV)], 240.0)
    lines = explanation(told(found(book, 300.0, moves=[MOVE]))).splitlines()
    assert lines[:2] == [
        "now:",
        "  27.0 MiB, layers of chat to KV memory of code (growth beyond): "
        "Running requests need more than the share of their model.",
    ]
    assert lines[2] == "since 2026-11-18 10:51:40 UTC, when this server began:"
    assert lines[3].startswith(
        "  mail lent code up to 2.0 MiB of idle KV memory for 60 s, and still"
    )
    assert lines[4].startswith("  chat lent code up to 9 layers")
    later = explanation(told(found(book, 300.0, since=T - 60))).splitlines()
    assert "since 2026-11-18 11:05:40 UTC:" in later


def test_nothing_is_said_as_well() -> None:
    assert explanation(told(found(LoanBook(), 9.0))).splitlines() == [
        "now:",
        "  nothing moved: each has its share",
        "since 2026-11-18 10:51:40 UTC, when this server began:",
        "  nobody lent anything",
    ]


LOAN = LoanTold(
    lender="chat",
    borrower="code",
    bytes_now=0,
    lent_s=60.0,
    byte_s=60.0,
    most_bytes={"layers": 3 * MIB},
    most_layers=1.0,
    reasons={"running": 1.0, "growth beyond": 2.0},
    wait_s=1.0,
    token_s=4.0,
    tokens=100_000,
    requests=1,
    preemptions_saved=1.2,
    waits_saved=0.4,
    request_s=9.0,
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "chat lent code up to 1 layer (3.0 MiB) for 60 s (growth beyond, running): +0.04 ms"),
        ({}, "+0.04 ms a token on 1 request; code saved about 1 preemption"),
        ({"waits_saved": 2000.0}, "about 1 preemption and 2,000 waits"),
        ({"preemptions_saved": 0.1}, "code saved no preemption"),
        ({"tokens": 100}, "+40 ms a token"),
        ({"tokens": 0, "token_s": 0.0}, "chat decoded nothing meanwhile"),
        ({"borrower": "chat"}, "chat gave up to 1 layer (3.0 MiB) for its own requests for 60 s"),
        ({"most_layers": 2.5}, "2.5 layers"),
        (
            {"lender": "", "most_bytes": {"free memory": MIB}},
            "code had up to 1.0 MiB of free memory for 60 s (growth beyond, running): code saved",
        ),
        ({"most_bytes": {"KV memory": MIB}}, "1.0 MiB of idle KV memory"),
        ({"most_bytes": {"KV memory": MIB}}, "no step waits for such memory"),
        ({"most_bytes": {"experts": MIB, "KV memory": MIB}}, "1.0 MiB of experts and 1.0 MiB of"),
    ],
)
def test_sentences(changes: dict[str, Any], words: str) -> None:
    assert words in sentence(structs.replace(LOAN, **changes))


def test_a_move_of_free_memory() -> None:
    move = MOVE._replace(source=FREE, reason=Reason.SHARE)
    assert moved(moved_form(move)) == (
        "27.0 MiB, free memory to KV memory of code (share): "
        "No demand needs it, and the share of the model has room for it."
    )


def test_pages_have_each_loan_once_and_moves_first() -> None:
    book = LoanBook()
    names = ["chat", "code", "mail"]
    book.planned([lending(one, other, 1) for one in names for other in names], 0.0)
    pairs, skip, pages = [], 0, 0
    while True:
        page = told(found(book, 9.0, moves=[MOVE], skip=skip, limit=4))
        assert len(page.moves) == (skip == 0)
        pairs += [(one.lender, one.borrower) for one in page.loans]
        pages += 1
        if page.next_skip is None:
            break
        skip = page.next_skip
    assert pages == 3 and pairs == sorted(set(pairs)) and len(pairs) == 9


def test_of_one_tenant_are_those_from_and_to_it() -> None:
    book = LoanBook()
    lent = [lending("chat", "code", 1), lending("mail", "chat", 1), lending("mail", "code", 1)]
    book.planned(lent, 0.0)
    page = told(found(book, 9.0, tenant="chat"))
    assert [(one.lender, one.borrower) for one in page.loans] == [
        ("chat", "code"),
        ("mail", "chat"),
    ]
    assert [one.bytes_now for one in page.loans] == [MIB, MIB]
