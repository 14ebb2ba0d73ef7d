"""Bytes of the pool by who holds them, and the share of each tenant. Pure.

Tenants borrow what others leave; a tenant under its share takes back from those above theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class PriorityClass(IntEnum):
    """Activity of a tenant; blocks of lower classes are evicted first."""

    EVICTABLE = 0
    """It will not come back soon: it has no share."""
    IDLE = 1
    RECENT = 2
    """It has worked a moment ago, or waits for its turn."""
    ACTIVE = 3


@dataclass(frozen=True, slots=True)
class Due:
    """Entitlement of a tenant on each medium below the device, by its configuration."""

    priority: int = 0
    """Priority of its blocks: with a higher one they are evicted later."""
    share: float = 100.0
    """Per cent of the medium that nobody else may take, as of the device. Where those of all are
    more than 100 together, each counts in proportion."""


ALL = Due()
"""Entitlement of a tenant that nobody configured."""


@dataclass
class TierAccount:
    """Bytes of one tenant. The fields after `held` are parts of it."""

    due: Due = ALL
    standing: PriorityClass = PriorityClass.ACTIVE
    held: int = 0
    pinned: int = 0
    """Bytes of READY blocks that a request needs."""
    reserved: int = 0
    """Bytes of blocks that are being written, or were when their writer was lost."""
    replicas: int = 0
    """Bytes of replicas that are written or needed; others count as free."""

    @property
    def rank(self) -> tuple[PriorityClass, int]:
        """Lower ones are evicted first."""
        return self.standing, self.due.priority


class TierLedger:
    """Accounts of all tenants on one medium of `budget` bytes."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._accounts: dict[str, TierAccount] = {}
        self._shares: dict[str, int] | None = None

    def account(self, tenant: str) -> TierAccount:
        """The tenant's account; a new one has class ACTIVE."""
        if tenant not in self._accounts:
            self._accounts[tenant] = TierAccount()
            self._shares = None
        return self._accounts[tenant]

    @property
    def tenants(self) -> Iterable[str]:
        return self._accounts.keys()

    def set(
        self,
        tenant: str,
        *,
        due: Due | None = None,
        standing: PriorityClass | None = None,
    ) -> None:
        """Set what shares depend on; None leaves it."""
        account = self.account(tenant)
        account.due = account.due if due is None else due
        account.standing = account.standing if standing is None else standing
        self._shares = None

    def close(self, tenant: str) -> None:
        """A tenant that holds nothing is there no more."""
        self._accounts.pop(tenant, None)
        self._shares = None

    def resize(self, budget: int) -> None:
        """Another budget: other shares."""
        self.budget, self._shares = budget, None

    def share(self, tenant: str) -> int:
        """Bytes of the budget that are the tenant's share.

        Others may not take them unless its class is EVICTABLE.
        """
        if self._shares is None:
            self._shares = self._shared()
        return self._shares.get(tenant, 0)

    def is_above(self, tenant: str, more: int = 0) -> bool:
        """True if it holds more than its share, or would with `more` bytes."""
        return self.account(tenant).held + more > self.share(tenant)

    def excess(self, tenant: str) -> float:
        """Bytes held as a part of its share; more than 1 is above it."""
        share = self.share(tenant)
        return self.account(tenant).held / share if share else float("inf")

    def _shared(self) -> dict[str, int]:
        shares = {
            name: account.due.share
            for name, account in self._accounts.items()
            if account.standing is not PriorityClass.EVICTABLE
        }
        whole = max(100.0, sum(shares.values()))
        return {name: int(self.budget * share / whole) for name, share in shares.items()}
