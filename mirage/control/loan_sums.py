"""Sums of loans: what one tenant lent another, its cost and its gain; see `loans`. Pure."""

from __future__ import annotations

import msgspec

Pair = tuple[str, str]
"""Names of lender and borrower."""


class LoanSums(msgspec.Struct):
    """Sums of one tenant's loans to another, or to itself for its own layers. Times are seconds,
    sizes bytes."""

    lent_s: float = 0.0
    byte_s: float = 0.0
    most: dict[str, int] = msgspec.field(default_factory=dict)
    """Most bytes lent at one time, by `Kind`."""
    reasons: dict[str, float] = msgspec.field(default_factory=dict)
    """Byte-seconds of lent memory by `Reason`."""
    wait_s: float = 0.0
    """Seconds that the lender's steps waited for loads of lent layers and experts."""
    token_s: float = 0.0
    """Seconds by which waits for lent layers and experts delayed the lender's tokens, summed over
    the tokens."""
    tokens: int = 0
    """Tokens that the lender decoded while the loan lasted."""
    requests: int = 0
    """Requests of the lender that ran while the loan lasted."""
    preemptions: float = 0.0
    """Number of preemptions that the borrower was spared, estimated."""
    waits: float = 0.0
    """Number of requests of the borrower that did not have to wait, estimated."""
    request_s: float = 0.0
    """Seconds, summed over the borrower's requests, for which these ran on lent memory,
    estimated."""

    def add(self, other: LoanSums) -> None:
        """Add `other` to this; of the most bytes, keep the larger."""
        for field in ADDED:
            setattr(self, field, getattr(self, field) + getattr(other, field))
        for kind, nbytes in other.most.items():
            self.most[kind] = max(self.most.get(kind, 0), nbytes)
        for reason, byte_s in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0.0) + byte_s


ADDED = tuple(f for f in LoanSums.__struct_fields__ if f not in ("most", "reasons"))


class LoanMinute(msgspec.Struct, frozen=True):
    """Sums of the loans of one pair in one minute; minutes are numbered from time 0."""

    minute: int
    pair: Pair
    sums: LoanSums

    def copied(self) -> LoanMinute:
        """Return a copy with the present sums."""
        (sums := LoanSums()).add(self.sums)
        return LoanMinute(self.minute, self.pair, sums)
