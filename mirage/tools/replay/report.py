"""``report.json``: figures of all policies for the same workload. Keys: docs/replaying.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from mirage.samples import PLACES
from mirage.tools.replay import timeline as tl
from mirage.tools.replay.client import Outcome
from mirage.tools.replay.metrics import summarize
from mirage.tools.replay.run import PolicyRun
from mirage.tools.replay.timeline import RecordedTimeline
from mirage.tools.replay.trail import parting
from mirage.tools.report.files import write_all
from mirage.tools.report.origin import machine
from mirage.tools.report.repeats import grouped, merged
from mirage.tools.report.slo import Slo
from mirage.workload.calls import clipped, tenants

SCHEMA_VERSION = 1
MAX_EXAMPLES = 10
"""Most differences, and most error messages, that a report lists."""
NO_FIGURES = ("timeline", "repeat", "errors", "refused_fields")
COUNTED = (
    *("preemptions", "bytes_streamed", "stall_s", "prefill_tokens"),
    *(f"tokens_from_{place}" for place in PLACES),
    *("saved_s", "kv_bytes_up", "kv_bytes_down", "late_loads", "failed_loads"),
)
"""Fields of a sample that only grow."""
MOST = {"layers_remapped_max": "layers_remapped", "kv_blocks_granted_max": "kv_blocks"}
"""Keys of a report with the largest sum over tenants of a field of samples."""
LAG_S = 0.02
"""Seconds of lag. If more than one request in a hundred of a run was sent later than this, the run
lagged.
"""


@dataclass(frozen=True)
class Setting:
    """Workload of a replay, the same for every run. `window` is in seconds of the trace, scales are
    factors.
    """

    config: str
    trace: str
    window: tuple[float, float] | None
    time_scale: float
    length_scale: float
    seed: int
    limit: int | None
    load: float | None = None
    """Rate of arrivals as a part of `capacity_rps`; None if gaps were not scaled to the machine."""
    capacity_rps: float | None = None
    """Measured capacity of the machine with ample memory, in requests a second."""
    trace_format: str | None = None
    """Format of the trace; None: recognised by the file's beginning."""
    rate: float | None = None
    """Requests a second by which `time_scale` was computed, or arrivals were drawn; None:
    neither.
    """
    concurrency: int | None = None
    """Requests in flight of a closed loop; None is an open loop."""
    repeats: int = 1
    think_s: float | None = None
    """Least seconds from an answer to the next turn of its session; None: turns do not wait."""
    abandon_s: float | None = None
    warm_up_s: float = 0.0
    """Seconds at the beginning in which requests are sent but not measured."""
    repeated_tokens: int | None = None
    """Prompt tokens that are the beginning of earlier prompts too, in whole blocks; None if not
    counted.
    """
    slo: Slo = field(default_factory=Slo)
    skipped: Counter[str] = field(default_factory=Counter)
    """Rows of the trace that are no requests, by reason."""


@dataclass(frozen=True)
class ReplayProvenance:
    """All that is needed to repeat the result."""

    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)


def build(
    setting: Setting,
    runs: Sequence[PolicyRun],
    now: datetime | None = None,
    provenance: ReplayProvenance = ReplayProvenance(),
) -> dict[str, Any]:
    """The whole report, ready for JSON, with the date `now` and the fields of `provenance`.

    `outputs_identical` is True only if every request's greedy output is the same under every policy
    and no request failed; None if fewer than two runs were complete. Requests that failed under
    some policy, or that the client gave up, are not compared.
    """
    whole = [run for run in runs if not run.interrupted]
    different = differences(whole)
    failed = any(o.error is not None and not o.abandoned for run in whole for o in run.outcomes)
    summaries = [summary(run, setting) for run in runs]
    return {
        "schema_version": SCHEMA_VERSION,
        "date": (now or datetime.now(UTC)).isoformat(timespec="seconds"),
        "machine": machine(),
        **vars(provenance),
        **vars(setting),
        "slo": setting.slo.limits(),
        "requests": len(runs[0].calls) if runs else 0,
        "clipped": clipped(runs[0].calls) if runs else 0,
        "interrupted": len(whole) < len(runs),
        "outputs_identical": not different and not failed if len(whole) > 1 else None,
        "outputs_different": len(different) if len(whole) > 1 else None,
        "differences": different[:MAX_EXAMPLES],
        "policies": _policies(summaries),
        "runs": summaries,
    }


def _policies(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A column for each policy: means and intervals over its complete runs, or over all if none is
    complete.
    """
    columns = []
    for runs in grouped(summaries).values():
        whole = [run for run in runs if not run["interrupted"]]
        columns.append(merged([_figures(run) for run in whole or runs]))
    return columns


def _figures(run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in NO_FIGURES}


def summary(run: PolicyRun, setting: Setting) -> dict[str, Any]:
    """Figures of one run. Memory figures are None if the server keeps no timeline; they count from
    the start of the run, including the warm-up.
    """
    measured = [outcome for outcome in run.outcomes if outcome.sent_s >= setting.warm_up_s]
    seconds = max(0.0, run.duration_s - setting.warm_up_s)
    slo = setting.slo if setting.slo.limits() else None
    lags = [outcome.lag_s for outcome in run.outcomes]
    return {
        "policy": run.policy,
        "repeat": run.repeat,
        "interrupted": run.interrupted,
        **summarize(measured, seconds, slo),
        **_memory(run.timeline),
        "max_lag_ms": round(max(lags, default=0.0) * 1e3, 3),
        "refused_fields": list(run.refused_fields),
        "lagged": bool(lags) and float(np.percentile(lags, 99)) > LAG_S,
        "errors": _errors(run.outcomes),
        "tenants": {name: _tenant(run, measured, seconds, slo, name) for name in _names(run)},
        "timeline": tl.columns(run.timeline) if run.timeline else None,
    }


def differences(runs: Sequence[PolicyRun]) -> list[dict[str, Any]]:
    """Requests that completed in every run with different outputs, and the first position at which
    one differs from that of the first run: of a token, or of a character if the server returned no
    token ids.
    """
    answers = [{o.call.index: o for o in run.outcomes if o.error is None} for run in runs]
    if len(answers) < 2:
        return []
    found = []
    for index, first in sorted(answers[0].items()):
        others = [other[index] for other in answers[1:] if index in other]
        found_at = [parting(first.output, other.output) for other in others]
        at = min((one for one in found_at if one is not None), default=None)
        if len(others) == len(answers) - 1 and at is not None:
            found.append(
                {
                    "request": index,
                    "tenant": first.call.tenant,
                    "first_difference_at": at,
                }
            )
    return found


def write(report: Mapping[str, Any], path: Path) -> None:
    """Write the report to a file. Raises `OSError`, and ValueError for NaN and infinity, which JSON
    does not have.
    """
    write_all({path: json.dumps(report, indent=1, allow_nan=False) + "\n"})


def _memory(timeline: RecordedTimeline | None) -> dict[str, Any]:
    if timeline is None:
        return dict.fromkeys((*COUNTED, *MOST))
    grown = {key: sum(tl.growth(timeline, attrgetter(key)).values()) for key in COUNTED}
    return {
        **{key: round(value, 3) for key, value in grown.items()},
        **{key: tl.peak(timeline, attrgetter(field)) for key, field in MOST.items()},
    }


def _tenant(
    run: PolicyRun, measured: Sequence[Outcome], seconds: float, slo: Slo | None, name: str
) -> dict[str, Any]:
    """Figures of one tenant with the same keys as the run's; rates are per second of the run."""
    outcomes = [outcome for outcome in measured if outcome.call.tenant == name]
    only = run.timeline and tl.only(run.timeline, name)
    return {**summarize(outcomes, seconds, slo), **_memory(only)}


def _names(run: PolicyRun) -> list[str]:
    served = list(run.timeline.tenants) if run.timeline else []
    return list(dict.fromkeys([*served, *tenants(run.calls)]))


def _errors(outcomes: Sequence[Outcome]) -> dict[str, int]:
    counts = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    return dict(counts.most_common(MAX_EXAMPLES))
