"""Latencies of one tenant, measured or simulated, by the same definitions. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from mirage.serve.whatif.forms import PastRow
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.roofline import PS
from mirage.simulate.tally import Distribution

PERCENTS = (50.0, 99.0)
LEAST_S = 1e-3
"""Least seconds by which a number is divided for a rate, so that the rate is finite."""


class LatencySpread(msgspec.Struct, frozen=True):
    """Median and 99th percentile, in milliseconds."""

    p50: float
    p99: float


class TenantFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one tenant over a span; None where nothing was measured."""

    requests: int
    ttft_ms: LatencySpread | None
    tpot_ms: LatencySpread | None
    whole_ms: LatencySpread | None
    """Time from a request's arrival to its last token."""
    tokens_s: float
    """Output tokens a second, from the tenant's first arrival to its last end."""
    preemptions: int | None


def span_s(rows: Sequence[PastRow]) -> float:
    """Seconds from the first arrival to the last end of these requests."""
    return max(row.t + row.whole_s for row in rows) - min(row.t for row in rows)


def measured(rows: Sequence[PastRow], preemptions: int | None) -> TenantFigures:
    """Figures of one tenant's requests, as they were measured.

    `preemptions` is their number of preemptions, which the result has too; None if unknown.
    """
    streams = [row for row in rows if row.first_s is not None]
    between = [
        (row.whole_s - (row.first_s or 0.0)) / (row.output - 1) for row in streams if row.output > 1
    ]
    return TenantFigures(
        requests=len(rows),
        ttft_ms=_spread([row.first_s or 0.0 for row in streams]),
        tpot_ms=_spread(between),
        whole_ms=_spread([row.whole_s for row in rows]),
        tokens_s=sum(row.output for row in rows) / max(LEAST_S, span_s(rows)),
        preemptions=preemptions,
    )


def simulated(engine: Engine, asked: Sequence[SimulatedRequest]) -> TenantFigures:
    """Figures of a simulated engine, after its world has ended; `asked` were its requests."""
    tally = engine.tally
    tally.flush()
    counters = tally.counters
    seconds = (tally.last_finish - asked[0].arrival) / PS if asked else 0.0
    return TenantFigures(
        requests=counters.completed,
        ttft_ms=_of(tally.ttft),
        tpot_ms=_of(tally.tpot),
        whole_ms=_of(tally.e2el),
        tokens_s=counters.output_tokens / max(LEAST_S, seconds),
        preemptions=counters.preemptions,
    )


def _spread(seconds: Sequence[float]) -> LatencySpread | None:
    return (
        LatencySpread(*(float(v) * 1e3 for v in np.percentile(seconds, PERCENTS)))
        if seconds
        else None
    )


def _of(times: Distribution) -> LatencySpread | None:
    if not times.count:
        return None
    return LatencySpread(*(value / PS * 1e3 for value in times.percentiles(list(PERCENTS))))
