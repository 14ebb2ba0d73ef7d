"""``report.json``: what every policy did with the same workload. Keys: docs/operating.md."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mirage.replay import timeline as tl
from mirage.replay.client import Outcome
from mirage.replay.metrics import summarize
from mirage.replay.run import Run
from mirage.replay.timeline import Timeline
from mirage.samples import TenantSample
from mirage.workload.calls import clipped, tenants

SCHEMA_VERSION = 1
MAX_EXAMPLES = 10
"""Differences and error messages that are spelled out."""


@dataclass(frozen=True)
class Setting:
    """What was replayed, the same for every run. Seconds of the trace, plain factors."""

    config: str
    trace: str
    window: tuple[float, float] | None
    time_scale: float
    length_scale: float
    seed: int
    limit: int | None
    trace_format: str | None = None
    """By the file's beginning if None."""
    rate: float | None = None
    """Requests a second, where the trace has no arrivals."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Rows of the trace that are no requests, by reason."""


def build(setting: Setting, runs: Sequence[Run], now: datetime | None = None) -> dict[str, Any]:
    """The whole report, ready for JSON.

    `outputs_identical` is True only if every request's greedy output is the same under every
    policy and nothing failed; None if fewer than two runs ran to their end. Requests that
    failed under some policy are not counted as different.
    """
    whole = [run for run in runs if not run.interrupted]
    different = differences(whole)
    failed = any(outcome.error is not None for run in whole for outcome in run.outcomes)
    return {
        "schema_version": SCHEMA_VERSION,
        "date": (now or datetime.now(UTC)).isoformat(timespec="seconds"),
        "machine": machine(),
        **vars(setting),
        "requests": len(runs[0].calls) if runs else 0,
        "clipped": clipped(runs[0].calls) if runs else 0,
        "interrupted": len(whole) < len(runs),
        "outputs_identical": not different and not failed if len(whole) > 1 else None,
        "outputs_different": len(different) if len(whole) > 1 else None,
        "differences": different[:MAX_EXAMPLES],
        "runs": [summary(run) for run in runs],
    }


def summary(run: Run) -> dict[str, Any]:
    """One policy's part. Memory figures are None if the server keeps no timeline."""
    return {
        "policy": run.policy,
        "interrupted": run.interrupted,
        **summarize(run.outcomes, run.duration_s),
        **_memory(run.timeline),
        "max_lag_ms": round(max((o.lag_s for o in run.outcomes), default=0.0) * 1e3, 3),
        "errors": _errors(run.outcomes),
        "tenants": {name: _tenant(run, name) for name in _names(run)},
        "timeline": tl.columns(run.timeline) if run.timeline else None,
    }


def differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Requests that completed in every run and read differently, with where they part."""
    answers = [{o.call.index: o for o in run.outcomes if o.error is None} for run in runs]
    if len(answers) < 2:
        return []
    found = []
    for index, first in sorted(answers[0].items()):
        others = [other[index] for other in answers[1:] if index in other]
        odd = [o for o in others if (o.text, o.token_ids) != (first.text, first.token_ids)]
        if len(others) == len(answers) - 1 and odd:
            found.append(
                {
                    "request": index,
                    "tenant": first.call.tenant,
                    "first_difference_at": _parting(first, odd[0]),
                }
            )
    return found


def machine() -> str:
    """Processors and their name, as ``2 x AMD EPYC``."""
    return f"{os.cpu_count()} x {_processor()}"


def write(report: Mapping[str, Any], path: Path) -> None:
    """Raises `OSError`. NaN and infinity are refused: they are no JSON."""
    path.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")


def _memory(timeline: Timeline | None) -> dict[str, Any]:
    if timeline is None:
        keys = "preemptions", "bytes_streamed", "layers_remapped_max", "kv_blocks_granted_max"
        return dict.fromkeys((*keys, "stall_s"))
    return {
        "preemptions": sum(tl.growth(timeline, _preemptions).values()),
        "bytes_streamed": sum(tl.growth(timeline, _streamed).values()),
        "layers_remapped_max": tl.peak(timeline, lambda tenant: tenant.alpha),
        "kv_blocks_granted_max": tl.peak(timeline, lambda tenant: tenant.kv_blocks),
        "stall_s": round(sum(tl.growth(timeline, lambda tenant: tenant.stall_s).values()), 3),
    }


def _tenant(run: Run, name: str) -> dict[str, Any]:
    """The same keys as the run's, for one tenant alone; rates per second of the run."""
    outcomes = [outcome for outcome in run.outcomes if outcome.call.tenant == name]
    only = run.timeline and tl.only(run.timeline, name)
    return {**summarize(outcomes, run.duration_s), **_memory(only)}


def _names(run: Run) -> list[str]:
    served = list(run.timeline.tenants) if run.timeline else []
    return list(dict.fromkeys([*served, *tenants(run.calls)]))


def _errors(outcomes: Sequence[Outcome]) -> dict[str, int]:
    counts = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    return dict(counts.most_common(MAX_EXAMPLES))


def _parting(one: Outcome, other: Outcome) -> int:
    """Position of the first difference, in tokens if both name theirs, else in characters."""
    tokens = one.token_ids and other.token_ids
    left, right = (one.token_ids, other.token_ids) if tokens else (one.text, other.text)
    same = [a == b for a, b in zip(left, right, strict=False)]
    return same.index(False) if False in same else len(same)


def _preemptions(tenant: TenantSample) -> int:
    return tenant.preemptions


def _streamed(tenant: TenantSample) -> int:
    return tenant.bytes_streamed


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), platform.machine())
