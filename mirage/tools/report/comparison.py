"""The comparison table: metrics as rows, policies as columns, the best value of each row marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from mirage.samples import PLACES
from mirage.units import GIB, MIB

BASELINE = "static"
"""Policy that ratios refer to; the first column if there is none of this policy."""


@dataclass(frozen=True)
class Metric:
    """A key of a run in the report, its name for readers, and which of low and high is better."""

    key: str
    label: str
    better: Literal["low", "high", None] = None
    divide: float = 1.0
    digits: int = 0
    if_any: bool = False
    """True if the row is left out when no run has a value other than 0."""


WORDS = ("the device's cache", "a peer", "host memory", "the SSD")
"""Names of `PLACES` for readers."""
TIERS = (
    *(
        Metric(f"tokens_from_{place}", f"tokens found in {words}", if_any=True)
        for place, words in zip(PLACES, WORDS, strict=True)
    ),
    Metric("saved_s", "computing time saved, s", digits=1, if_any=True),
    Metric("kv_bytes_up", "KV blocks brought up, GiB", divide=GIB, digits=2, if_any=True),
    Metric("kv_bytes_down", "KV blocks copied down, GiB", divide=GIB, digits=2, if_any=True),
    Metric("late_loads", "requests whose blocks came too late", if_any=True),
)
"""Metrics of caches: tokens that were found there and so not computed, and copies to and from the
tiers."""
METRICS = (
    Metric("completed", "requests completed", "high"),
    Metric("failed", "requests failed", "low"),
    Metric("abandoned", "requests given up", "low"),
    Metric("slo_met", "requests within the SLO", "high"),
    Metric("goodput", "goodput, requests within the SLO per s", "high", digits=2),
    Metric("preemptions", "preemptions", "low"),
    Metric("duration", "duration, s", digits=1),
    Metric("request_throughput", "requests per s", "high", digits=2),
    Metric("output_throughput", "output tokens per s", "high", digits=1),
    *(
        Metric(f"{statistic}_{key}", f"{name} {label}, ms", "low", digits=1)
        for key, name in (
            ("ttft_ms", "TTFT"),
            ("ttft_first_ms", "TTFT of first turns"),
            ("ttft_later_ms", "TTFT of later turns"),
            ("tpot_ms", "TPOT"),
            ("itl_ms", "ITL"),
            ("e2el_ms", "E2EL"),
        )
        for statistic, label in (("mean", "mean"), ("p50", "P50"), ("p99", "P99"))
    ),
    Metric("kv_blocks_granted_max", "KV blocks granted, most"),
    Metric("layers_remapped_max", "layers remapped, most"),
    Metric("bytes_streamed", "parameters streamed, MiB", divide=MIB, digits=1),
    Metric("prefill_tokens", "tokens of prompts computed", "low", if_any=True),
    *TIERS,
    Metric("failed_loads", "requests whose blocks were lost", if_any=True),
)


@dataclass(frozen=True)
class Cell:
    """One metric of one policy. `ratio` is the value over the baseline's, as text, with a verdict
    if runs are compared (`mirage compare`); None if no ratio is to be shown.

    `half` is half the width of the mean's 95 % interval over repeated runs; `range` is from the
    least to the greatest value over seeds.
    """

    text: str
    ratio: str | None
    best: bool
    half: str | None = None
    range: str | None = None


@dataclass(frozen=True)
class ComparisonRow:
    label: str
    cells: list[Cell]


def rows(
    figures: Sequence[Mapping[str, Any]],
    policies: Sequence[str],
    wanted: Sequence[Metric] = METRICS,
) -> list[ComparisonRow]:
    """One row for each wanted metric that some policy has.

    `figures` are the policies' runs, or one tenant's parts of them.
    """
    base = policies.index(BASELINE) if BASELINE in policies else 0
    table = []
    for metric in wanted:
        values = [part.get(metric.key) for part in figures]
        if any(value if metric.if_any else value is not None for value in values):
            cells = [_cell(metric, values, column, base) for column in range(len(values))]
            halves = [part.get("intervals", {}).get(metric.key) for part in figures]
            table.append(ComparisonRow(metric.label, [*map(partial(_sure, metric), cells, halves)]))
    return table


def _cell(metric: Metric, values: Sequence[float | None], column: int, base: int) -> Cell:
    value, against = values[column], values[base]
    if value is None:
        return Cell("–", None, False)
    ratio = None
    if metric.better and value and against and value != against:
        ratio = f"{value / against:.2f}×"
    return Cell(f"{value / metric.divide:,.{metric.digits}f}", ratio, _best(metric, values, value))


def _sure(metric: Metric, cell: Cell, half: float | None) -> Cell:
    """Return the cell with half its 95 % interval; unchanged if `half` is None."""
    if half is None:
        return cell
    return replace(cell, half=f"± {half / metric.divide:,.{metric.digits}f}")


def _best(metric: Metric, values: Sequence[float | None], value: float) -> bool:
    """True if `value` is the best of `values`; always False if they are all equal."""
    known = [other for other in values if other is not None]
    if metric.better is None or len(set(known)) < 2:
        return False
    return value == (min(known) if metric.better == "low" else max(known))
