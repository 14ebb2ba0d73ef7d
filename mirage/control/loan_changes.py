"""Begin and end of loans. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from mirage.control.lent import Lending
from mirage.control.loan_sums import Pair
from mirage.control.moves import Kind, Reason


class LoanChange(NamedTuple):
    """Loan that begins or ends at the time `at`, with its bytes; kind and reason are those of its
    largest part."""

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
    """Yield a change at `now` (seconds) for each loan that is in `here` and not in `there`;
    `begins` is True if it begins, False if it ends."""
    for pair, each in here.items():
        if pair not in there:
            most = max(each, key=lambda one: one.nbytes)
            nbytes = sum(one.nbytes for one in each)
            yield LoanChange(now, *pair, nbytes, most.kind, most.reason, begins)
