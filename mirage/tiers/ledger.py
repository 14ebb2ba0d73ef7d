"""Bytes of the pool by tenant, and the share of each tenant. Pure.

Tenants borrow what others leave free; a tenant under its share takes memory back from those above
theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class PriorityClass(IntEnum):
    """Class of a tenant by its activity; blocks of lower classes are evicted first."""

    EVICTABLE = 0
    """The tenant will not come back soon: it has no share."""
    IDLE = 1
    RECENT = 2
    """The tenant had work a moment ago, or waits for its turn."""
    ACTIVE = 3


@dataclass(frozen=True, slots=True)
class Due:
    """Entitlement of a tenant on each medium below the device, by its configuration."""

    priority: int = 0
    """Priority of its blocks: those of a higher priority are evicted later."""
    share: float = 100.0
    """Per cent of the medium, as on the device: blocks within it are not evicted for other tenants,
    which may use what is free of it. If the shares of all tenants add up to more than 100, each
    counts in proportion."""


ALL = Due()
"""Entitlement of a tenant that is not configured."""


@dataclass
class TierAccount:
    """Bytes of one tenant on one medium. The fields after `held` are parts of it."""

    due: Due = ALL
    standing: PriorityClass = PriorityClass.ACTIVE
    held: int = 0
    pinned: int = 0
    """Bytes of READY blocks that a request needs."""
    reserved: int = 0
    """Bytes of blocks that are being written, or were when their writer was lost."""
    replicas: int = 0
    """Bytes of replicas (copies of parameters on peers) that are being written or that requests
    need; other replicas count as free."""

    @property
    def rank(self) -> tuple[PriorityClass, int]:
        """Class of the tenant by its activity, and its priority: blocks of lower ranks are evicted
        first."""
        return self.standing, self.due.priority


class TierLedger:
    """Accounts of all tenants on one medium of `budget` bytes."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._accounts: dict[str, TierAccount] = {}
        self._shares: dict[str, int] | None = None

    def account(self, tenant: str) -> TierAccount:
        """Return the tenant's account; a new one has class ACTIVE."""
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
        """Set a tenant's entitlement (`due`) and class (`standing`), which shares depend on; None
        leaves a value as it is."""
        account = self.account(tenant)
        account.due = account.due if due is None else due
        account.standing = account.standing if standing is None else standing
        self._shares = None

    def close(self, tenant: str) -> None:
        """Close the account of a tenant that holds nothing."""
        self._accounts.pop(tenant, None)
        self._shares = None

    def resize(self, budget: int) -> None:
        """Set the budget; all shares change with it."""
        self.budget, self._shares = budget, None

    def share(self, tenant: str) -> int:
        """Return the bytes of the budget that are the tenant's share: blocks within it are not
        evicted for other tenants. 0 for a tenant of class EVICTABLE, or without an account.
        """
        if self._shares is None:
            self._shares = self._shared()
        return self._shares.get(tenant, 0)

    def is_above(self, tenant: str, more: int = 0) -> bool:
        """True if the tenant holds more than its share, or would with `more` further bytes."""
        return self.account(tenant).held + more > self.share(tenant)

    def excess(self, tenant: str) -> float:
        """Return the ratio of the bytes that a tenant holds to its share; infinite if the share is
        0."""
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
