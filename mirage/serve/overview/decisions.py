"""Loans that begin and end, in words. Pure.

Small loans begin and end several times a second. So each pair of lender and borrower has one line,
about its newest change, with the number of changes before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirage.control.lent import NOBODY
from mirage.control.loan_changes import LoanChange
from mirage.control.loan_sums import Pair
from mirage.control.moves import Kind
from mirage.serve.overview.forms import Decision
from mirage.units import size

WORDS = {Kind.KV: "idle KV memory"}


def loan_decisions(changes: Iterable[LoanChange], epoch: float) -> list[Decision]:
    """Newest change of each pair of lender and borrower; `changes` are in the order of their times.

    `epoch` is the time at which the loan book's clock was 0, in seconds since 1970.
    """
    every: dict[Pair, list[LoanChange]] = {}
    for change in changes:
        every.setdefault((change.lender, change.borrower), []).append(change)
    return [_decision(own, epoch) for own in every.values()]


def _decision(changes: Sequence[LoanChange], epoch: float) -> Decision:
    first, last, before = changes[0], changes[-1], len(changes) - 1
    what = f"{size(last.nbytes)} of {WORDS.get(last.kind, last.kind)}"
    words = _begins if last.begins else _ends
    text = words(last.lender, last.borrower, what)
    if before:
        some = "1 change" if before == 1 else f"{before} changes"
        text += f", after {some} in {last.at - first.at:.0f} s"
    why = last.reason.sentence if last.begins else ""
    return Decision(epoch + last.at, last.borrower, text, why)


def _begins(lender: str, borrower: str, what: str) -> str:
    if lender == NOBODY:
        return f"{borrower} has {what} beyond its share"
    if lender == borrower:
        return f"{borrower} gives {what} for its own requests"
    return f"{lender} lends {borrower} {what}"


def _ends(lender: str, borrower: str, what: str) -> str:
    if lender == NOBODY:
        return f"{borrower} has given {what} back"
    if lender == borrower:
        return f"{borrower} has its {what} back"
    return f"{borrower} has given {lender} {what} back"
