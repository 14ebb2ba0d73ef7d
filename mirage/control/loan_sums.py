"""Sums of loans: what one tenant lent another, what it cost and saved; see `loans`. Pure."""

from __future__ import annotations

import msgspec

Pair = tuple[str, str]
"""Lender and borrower."""


class LoanSums(msgspec.Struct):
    """Sums of one tenant's loans to another, or to itself of its own layers. Seconds and bytes."""

    lent_s: float = 0.0
    byte_s: float = 0.0
    most: dict[str, int] = msgspec.field(default_factory=dict)
    """The most bytes at once, by `Kind`."""
    reasons: dict[str, float] = msgspec.field(default_factory=dict)
    """Byte-seconds by `Reason`."""
    wait_s: float = 0.0
    """Time that the lender's steps waited for what it streams."""
    token_s: float = 0.0
    """Time that this added to its tokens, all together."""
    tokens: int = 0
    """Tokens that it decoded meanwhile."""
    requests: int = 0
    """Its requests that ran meanwhile."""
    preemptions: float = 0.0
    """Preemptions of the borrower that were saved, estimated."""
    waits: float = 0.0
    """Requests of the borrower that did not have to wait, estimated."""
    request_s: float = 0.0
    """Request-seconds of the borrower that ran on this memory, estimated."""

    def add(self, other: LoanSums) -> None:
        """Be the sum of both, and the larger of what is the most."""
        for field in ADDED:
            setattr(self, field, getattr(self, field) + getattr(other, field))
        for kind, nbytes in other.most.items():
            self.most[kind] = max(self.most.get(kind, 0), nbytes)
        for reason, byte_s in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0.0) + byte_s


ADDED = tuple(f for f in LoanSums.__struct_fields__ if f not in ("most", "reasons"))


class LoanMinute(msgspec.Struct, frozen=True):
    """Sums of one minute, by its number."""

    minute: int
    pair: Pair
    sums: LoanSums

    def copied(self) -> LoanMinute:
        """The same as it is now."""
        (sums := LoanSums()).add(self.sums)
        return LoanMinute(self.minute, self.pair, sums)
