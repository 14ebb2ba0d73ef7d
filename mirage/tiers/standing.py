"""Priority class of each tenant in the pool, by the tenant's activity. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mirage.protocol import Report
from mirage.tiers.ledger import PriorityClass

RECENT_S = 30.0
"""Seconds for which a tenant is RECENT after its last request: people in a chat take a while to
answer."""


class Standings:
    """Priority classes of tenants, from their newest reports. Times are seconds that never go
    back."""

    def __init__(self, recent_s: float = RECENT_S) -> None:
        self._recent_s = recent_s
        self._worked: dict[str, float] = {}
        self._told: dict[str, PriorityClass] = {}

    def changes(
        self,
        tenants: Collection[str],
        reports: Mapping[str, Report],
        given_up: Collection[str],
        now: float,
    ) -> dict[str, PriorityClass]:
        """Return the new class of each tenant whose class has changed since the last call.
        `given_up` are the tenants that do not serve for now: their class is EVICTABLE."""
        found = {
            name: self._of(name, reports.get(name), given_up=name in given_up, now=now)
            for name in tenants
        }
        changed = {n: standing for n, standing in found.items() if self._told.get(n) != standing}
        self._told |= changed
        return changed

    def forget(self, tenant: str) -> None:
        """Forget a removed tenant."""
        self._worked.pop(tenant, None)
        self._told.pop(tenant, None)

    def _of(self, name: str, report: Report | None, *, given_up: bool, now: float) -> PriorityClass:
        if given_up:
            return PriorityClass.EVICTABLE
        if report is not None and report.running + report.waiting:
            self._worked[name] = now
            return PriorityClass.ACTIVE if report.holds_turn else PriorityClass.RECENT
        worked = self._worked.get(name)
        if worked is not None and now - worked <= self._recent_s:
            return PriorityClass.RECENT
        return PriorityClass.IDLE
