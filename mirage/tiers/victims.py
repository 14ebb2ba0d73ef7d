"""Tenants in the order in which their blocks are evicted. Pure.

The order is: tenants of class EVICTABLE; tenants above their share, lower classes and then lower
priorities first, of equals the one most above; the taker itself. So no tenant loses memory within
its share to another, and for each tenant its policy decides which block goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mirage.tiers.blocks import Block, Name
from mirage.tiers.ledger import PriorityClass, TierLedger
from mirage.tiers.policies import EvictionPolicy


class Victims:
    """READY blocks of all tenants, each tenant's under a policy of its own."""

    def __init__(self, ledger: TierLedger, make: Callable[[], EvictionPolicy]) -> None:
        self._ledger, self._make = ledger, make
        self._policies: dict[str, EvictionPolicy] = {}

    def add(self, block: Block) -> None:
        """Enter a block that is READY now, for its tenant."""
        self._policy(block.tenant).add(block.name)

    def use(self, block: Block, tenant: str) -> None:
        """Note that `tenant` used the block, which is a block of this tenant from now on."""
        if tenant == block.tenant:
            self._policy(tenant).use(block.name)
            return
        self._policy(block.tenant).drop(block.name)
        block.tenant = tenant
        policy = self._policy(tenant)
        policy.add(block.name)
        policy.use(block.name)

    def drop(self, block: Block) -> None:
        """Remove the block from the candidates, until it is added again."""
        self._policy(block.tenant).drop(block.name)

    def evict(self, block: Block) -> None:
        """Note that the block was evicted, because others needed its room."""
        self._policy(block.tenant).evict(block.name)

    def close(self, tenant: str) -> None:
        """Remove a tenant that has no blocks."""
        self._policies.pop(tenant, None)

    def takeable(self, taker: str | None, nbytes: int) -> list[str]:
        """Return the tenants from which `taker` may take blocks to hold `nbytes` more, first to
        lose first.

        `taker` is None if the budget shrinks, which takes from all tenants.
        """
        book = self._ledger
        names = [name for name, policy in self._policies.items() if len(policy)]
        gone = [n for n in names if book.account(n).standing is PriorityClass.EVICTABLE]
        rest = [n for n in names if n not in gone]
        above = [n for n in rest if book.is_above(n, nbytes if n == taker else 0)]
        left = [n for n in rest if n not in above and taker in (None, n)]
        return [*self._ranked(gone), *self._ranked(above), *self._ranked(left)]

    def order(self, tenants: list[str]) -> Iterator[Name]:
        """Yield names of these tenants' blocks, first to be evicted first. The iterator is valid
        until a block is added, used or removed."""
        for tenant in tenants:
            yield from self._policies[tenant].victims()

    def _ranked(self, tenants: list[str]) -> list[str]:
        book = self._ledger
        return sorted(tenants, key=lambda n: (book.account(n).rank, -book.excess(n), n))

    def _policy(self, tenant: str) -> EvictionPolicy:
        return self._policies.setdefault(tenant, self._make())
