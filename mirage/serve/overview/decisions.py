"""Loans that begin and end, in words. Pure."""

from __future__ import annotations

from mirage.control.lent import NOBODY
from mirage.control.loan_changes import LoanChange
from mirage.control.moves import Kind
from mirage.serve.overview.forms import Decision
from mirage.units import size

WORDS = {Kind.KV: "idle KV memory"}


def loan_decision(change: LoanChange, epoch: float) -> Decision:
    """One loan; `epoch` is the time of the book's 0, in seconds since 1970."""
    what = f"{size(change.nbytes)} of {WORDS.get(change.kind, change.kind)}"
    words = _begins if change.begins else _ends
    text = words(change.lender, change.borrower, what)
    why = change.reason.sentence if change.begins else ""
    return Decision(epoch + change.at, change.borrower, text, why)


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
