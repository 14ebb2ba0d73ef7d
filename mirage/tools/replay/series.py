"""Numbers over time, from the timelines of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mirage.samples import TenantSample
from mirage.tools.replay.run import PolicyRun
from mirage.tools.replay.timeline import RecordedTimeline
from mirage.tools.report.drawing import Array, thin


def tenants_of(runs: Sequence[PolicyRun]) -> list[str]:
    """Tenants in the server's order."""
    known = [name for run in runs if run.timeline for name in run.timeline.tenants]
    return list(dict.fromkeys(known))


def series(
    timeline: RecordedTimeline, tenant: str, value: Callable[[TenantSample], float]
) -> tuple[Array, Array]:
    """Times in seconds and values of one tenant; NaN while the tenant was absent."""
    samples = thin(timeline.samples)
    found = [sample.tenants.get(tenant) for sample in samples]
    values = [float("nan") if one is None else float(value(one)) for one in found]
    return np.array([sample.t for sample in samples]), np.array(values)


def summed(
    timeline: RecordedTimeline, value: Callable[[TenantSample], float]
) -> tuple[Array, Array]:
    """Times in seconds and the sum over the tenants that were present."""
    samples = thin(timeline.samples)
    values = [float(sum(value(one) for one in sample.tenants.values())) for sample in samples]
    return np.array([sample.t for sample in samples]), np.array(values)
