"""Requests of engines for growth, each of which gets an answer. Pure.

An engine holds running requests that want to grow until it gets an answer: an allotment with more
KV, or a `Refusal` once the plan has no more for it. The answer waits only while other engines are
to give back unused KV memory that the plan has assigned to it, and at most `patience_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mirage.control.demand import lacks_growth
from mirage.control.tenant_state import TenantSnapshot
from mirage.protocol import Allotment, Report


class GrowthRequests:
    """Requests for growth from the engines of one device that await an answer, one for each tenant
    at most. Times in seconds."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: dict[str, float] = {}
        """Time since which each tenant's request awaits an answer."""

    def __bool__(self) -> bool:
        return bool(self._since)

    def reported(self, name: str, report: Report, now: float) -> None:
        """Note what a tenant's engine reports: a request, or that it needs none any more."""
        if lacks_growth(report):
            self._since.setdefault(name, now)
        else:
            self.dropped(name)

    def turn(self, name: str | None, now: float) -> None:
        """Note that a tenant got the turn: the wait of its request begins anew. None changes
        nothing."""
        if name is not None and name in self._since:
            self._since[name] = now

    def dropped(self, name: str) -> None:
        """Drop a tenant's request: it was granted, or its engine takes part no more."""
        self._since.pop(name, None)

    def deadlines(self) -> Iterator[tuple[str, float]]:
        """Yield each tenant with a request, and the time at which its answer is due."""
        for name, since in self._since.items():
            yield name, since + self._patience_s

    def refused(
        self, tenants: Iterable[TenantSnapshot], targets: Mapping[str, Allotment], now: float
    ) -> list[TenantSnapshot]:
        """Return the active tenants whose requests are refused now, and drop their requests and
        those that are fulfilled.
        """
        refused = []
        for t in tenants:
            assert t.allotment is not None
            if t.name not in self._since or not t.active:
                continue
            missing = wants_more(t)
            coming = targets[t.name].kv_extents > t.allotment.kv_extents
            if missing and coming and now < self._since[t.name] + self._patience_s:
                continue
            self.dropped(t.name)
            if missing:
                refused.append(t)
        return refused


def wants_more(t: TenantSnapshot) -> bool:
    """True if a tenant's running requests want more KV memory than it was allotted."""
    assert t.allotment is not None
    return t.growth_extents > t.allotment.kv_extents
