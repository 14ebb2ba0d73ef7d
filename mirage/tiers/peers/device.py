"""Memory of one peer: its budget, its leases, and their places. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mirage.tiers.holes import ByteRange, Holes
from mirage.tiers.peers.lease import Lease


@dataclass(frozen=True)
class DeviceState:
    """Memory of a device by its use, in bytes."""

    capacity_bytes: int
    budget_bytes: int
    held_bytes: int
    owed_bytes: int
    """Bytes above the budget, in leases that are being revoked."""
    leases: int


@dataclass
class Loan:
    """Lease that is held, and the conditions that its revocation waits for."""

    lease: Lease
    holder: str
    backed: bool
    pins: int = 0
    """Number of copies and other uses that have to end before the revocation does."""
    draining: bool = False
    saved: bool = False

    @property
    def over(self) -> bool:
        """True if the lease drains and nothing prevents the end of its revocation."""
        return self.draining and not self.pins and (self.saved or not self.backed)


@dataclass
class PeerDevice:
    """Device with `capacity` bytes, of which `budget` may be lent."""

    capacity: int
    budget: int = field(init=False)
    held: int = 0
    loans: dict[int, Loan] = field(default_factory=dict)
    """Loans by the lease's number, the oldest first."""

    def __post_init__(self) -> None:
        self.budget = self.capacity
        self.holes = Holes(self.capacity)

    def fit(self, nbytes: int) -> ByteRange | None:
        """Return the smallest free range for `nbytes`, if the budget has room; else None."""
        return self.holes.fit(nbytes) if self.held + nbytes <= self.budget else None

    def lend(self, loan: Loan) -> None:
        """Hold a lease from now on, at the offset that `fit` found."""
        self.holes.take(loan.lease.nbytes)
        self.held += loan.lease.nbytes
        self.loans[loan.lease.number] = loan

    def drop(self, lease: Lease) -> None:
        """Free a lease's memory."""
        del self.loans[lease.number]
        self.held -= lease.nbytes
        self.holes.give(ByteRange(lease.offset, lease.nbytes))

    def to_revoke(self, rank: Callable[[Lease], int]) -> list[Loan]:
        """Return the loans that have to be revoked so that the rest is within the budget.

        Low ranks come first, of equals those without pins, then old ones.
        """
        kept = [loan for loan in self.loans.values() if not loan.draining]
        over = sum(loan.lease.nbytes for loan in kept) - self.budget
        chosen: list[Loan] = []
        first = sorted(kept, key=lambda o: (rank(o.lease), o.pins > 0, o.lease.number))
        for loan in first:
            if over <= 0:
                break
            chosen.append(loan)
            over -= loan.lease.nbytes
        return chosen

    def state(self) -> DeviceState:
        """Return a snapshot of the device."""
        owed = max(0, self.held - self.budget)
        return DeviceState(self.capacity, self.budget, self.held, owed, len(self.loans))
