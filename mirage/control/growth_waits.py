"""Time from when an engine asks for memory of running requests to when it can use it. Pure.

An engine asks ahead of need, so that its requests wait for less than that, or not at all. What it
asked for and then needed no more, as when a request ended, is not counted.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import NamedTuple

from mirage.control.demand import lacks_growth
from mirage.control.time_counts import TimeCounts
from mirage.protocol import Report

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _GrowthAsked(NamedTuple):
    """An engine's request for `extents` extents in total, open since the time `since` (seconds)."""

    since: float
    extents: int


class GrowthWaits:
    """Times of each tenant on one device, in `counts`."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, TimeCounts] = defaultdict(partial(TimeCounts, BOUNDS))
        self._asked: dict[str, _GrowthAsked] = {}

    def reported(self, tenant: str, report: Report, now: float) -> None:
        """An engine has told its state, at a time in seconds."""
        asked = self._asked.get(tenant)
        if asked is not None and report.kv_usable_extents >= asked.extents:
            self.counts[tenant].add(now - asked.since)
            asked = None
        if not lacks_growth(report):
            self._asked.pop(tenant, None)
        elif asked is None:
            self._asked[tenant] = _GrowthAsked(now, report.growth_extents)
        else:
            least = min(asked.extents, report.growth_extents)
            self._asked[tenant] = _GrowthAsked(asked.since, least)

    def rests(self, tenant: str) -> None:
        """Drop a tenant's request for growth: it sleeps, or is lost."""
        self._asked.pop(tenant, None)

    def forget(self, tenant: str) -> None:
        """Drop a removed tenant."""
        self.rests(tenant)
        self.counts.pop(tenant, None)
