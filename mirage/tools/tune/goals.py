"""Objectives of a tuning: goodput under an SLO, throughput, or a latency. Pure.

Goodput is requests a second that met all limits. Latencies are those of ``vllm bench serve``; the
ITL that an SLO limits is the longest gap between two tokens of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mirage.config import ConfigError
from mirage.tools.report.slo import NAMES, Slo

STATISTICS = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}
LATENCIES = ("ttft", "tpot", "itl", "e2el")
RATES = ("goodput", "throughput", "requests")
"""Objectives that are rates per second: requests within the limits, output tokens, and all
requests.
"""
OBJECTIVES = (*RATES, *(f"{name}_{how}" for name in LATENCIES for how in STATISTICS))


class CompletedRequest(NamedTuple):
    """Latencies of a completed request in seconds, and the number of its output tokens."""

    ttft: float
    tpot: float
    """Mean seconds per output token after the first; 0 for a request with one."""
    longest: float
    """Longest gap between two of its tokens."""
    e2el: float
    tokens: int
    """Output tokens."""
    ended: float = 0.0
    """Time of its last token, in seconds since the window's begin; 0 for a request to real engines.
    """

    def latencies_ms(self) -> dict[str, float]:
        """This request's latencies in milliseconds, by the names of the limits of `Slo`."""
        seconds = (self.ttft, self.tpot, self.longest, self.e2el)
        return {name: each * 1e3 for name, each in zip(NAMES, seconds, strict=True)}


@dataclass(frozen=True)
class WindowResult:
    """Result of one window of requests under one configuration."""

    rows: tuple[CompletedRequest, ...]
    duration_s: float
    preemptions: int = 0
    lent_idle: float = 0.0
    """Bytes of layers that idle models had given away, times the seconds for which they had."""
    lent_active: float = 0.0
    """Bytes of layers that models with work had given away, times the seconds for which they had.
    """
    streamed: int = 0
    """Bytes of layers streamed."""


@dataclass(frozen=True)
class Goal:
    """One objective, and the limits by which goodput is counted."""

    objective: str
    slo: Slo

    @property
    def maximised(self) -> bool:
        """True if a larger value is better, as for rates; False for latencies."""
        return self.objective in RATES

    def value(self, outcomes: Sequence[WindowResult]) -> float:
        """Value over all requests of these windows together; latencies in milliseconds."""
        return figures(outcomes, self.slo)[self.objective]

    def better(self, one: float, other: float) -> bool:
        """True if `one` is strictly better."""
        return one > other if self.maximised else one < other

    def gain(self, one: float, other: float) -> float:
        """Relative gain of `one` over `other`; negative if it is worse."""
        if one == other:
            return 0.0
        if not other or isinf(other):
            return inf if self.better(one, other) else -inf
        return (one - other) / other if self.maximised else (other - one) / other

    @property
    def worst(self) -> float:
        """Worst possible value: 0 if the objective is maximised, else infinity."""
        return 0.0 if self.maximised else inf


def figures(outcomes: Sequence[WindowResult], slo: Slo) -> dict[str, float]:
    """All objectives over all requests of these windows; 0 or infinite if none completed.

    ``itl`` is the longest gap of each request. Latencies are in milliseconds.
    """
    rows = [row for outcome in outcomes for row in outcome.rows]
    seconds = sum(outcome.duration_s for outcome in outcomes)
    per_s = 1 / seconds if seconds else 0.0
    found = {
        "goodput": sum(map(slo.met, rows)) * per_s,
        "throughput": sum(row.tokens for row in rows) * per_s,
        "requests": len(rows) * per_s,
    }
    for name, values in _columns(rows).items():
        for how, percent in STATISTICS.items():
            found[f"{name}_{how}"] = _statistic(values, percent)
    return found


def share_met(outcomes: Sequence[WindowResult], slo: Slo) -> float:
    """Part of the completed requests that kept all limits; 0 if none completed."""
    rows = [row for outcome in outcomes for row in outcome.rows]
    return sum(map(slo.met, rows)) / len(rows) if rows else 0.0


def parse_objective(text: str) -> str:
    """The name of an objective. Raises `ConfigError` with one line if it is unknown."""
    if text not in OBJECTIVES:
        raise ConfigError(f"--objective {text!r}: choose from {', '.join(OBJECTIVES)}")
    return text


def unit(objective: str) -> str:
    """Unit of an objective's values."""
    return {"throughput": "tokens/s"}.get(objective, "requests/s" if objective in RATES else "ms")


def _columns(rows: Sequence[CompletedRequest]) -> dict[str, npt.NDArray[np.float64]]:
    """Values of each latency in milliseconds; TPOT and ITL only of requests with several tokens."""
    whole = np.asarray(rows, dtype=np.float64).reshape(-1, len(CompletedRequest._fields))
    ttft, tpot, longest, e2el = whole.T[:4] * 1e3
    several = whole[:, 4] > 1
    values = (ttft, tpot[several], longest[several], e2el)
    return dict(zip(LATENCIES, values, strict=True))


def _statistic(values: npt.NDArray[np.float64], percent: float | None) -> float:
    if not len(values):
        return inf
    return float(np.mean(values) if percent is None else np.percentile(values, percent))
