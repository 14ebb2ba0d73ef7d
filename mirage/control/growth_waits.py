"""Time from an engine's demand for memory for running requests until it can use that memory. Pure.

An engine asks ahead of need, so its requests wait for less than this time, or not at all. A demand
that the engine dropped, for example because a request ended, is not counted.
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
    """An engine's demand for `extents` extents in total, open since the time `since` (seconds)."""

    since: float
    extents: int


class GrowthWaits:
    """Waiting times of each tenant of one device, in `counts`."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, TimeCounts] = defaultdict(partial(TimeCounts, BOUNDS))
        self._asked: dict[str, _GrowthAsked] = {}

    def reported(self, tenant: str, report: Report, now: float) -> None:
        """Note an engine's report at the time `now` in seconds; count the wait that it ends, if
        any."""
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
        """Drop a tenant's open demand for growth, because the tenant sleeps or is lost."""
        self._asked.pop(tenant, None)

    def forget(self, tenant: str) -> None:
        """Drop the times of a removed tenant."""
        self.rests(tenant)
        self.counts.pop(tenant, None)
