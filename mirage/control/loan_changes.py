"""Begin and end of loans. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from mirage.control.lent import Lending
from mirage.control.loan_sums import Pair
from mirage.control.moves import Kind, Reason


class LoanChange(NamedTuple):
    """Begin or end of the loan between a lender and a borrower, at the time `at` in seconds.

    The loan is the sum of one or more `Lending`s. `nbytes` are the bytes of all of them; `kind` and
    `reason` are those of the largest one. `begins` is True for a begin, False for an end.
    """

    at: float
    lender: str
    borrower: str
    nbytes: int
    kind: Kind
    reason: Reason
    begins: bool


def changed(
    here: Mapping[Pair, Sequence[Lending]],
    there: Collection[Pair],
    now: float,
    *,
    begins: bool,
) -> Iterator[LoanChange]:
    """Yield a change at `now` (seconds) for each pair of lender and borrower with a loan in `here`
    and none in `there`. `begins` is True if `here` is the newer of the two, so that these loans
    begin; False if it is the older one, so that they end."""
    for pair, each in here.items():
        if pair not in there:
            most = max(each, key=lambda one: one.nbytes)
            nbytes = sum(one.nbytes for one in each)
            yield LoanChange(now, *pair, nbytes, most.kind, most.reason, begins)
