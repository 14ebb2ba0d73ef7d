"""The result as a table on the terminal: policies as columns, the best of each row marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from mirage.tools.report import comparison
from mirage.tools.report.comparison import ComparisonRow, Metric
from mirage.tools.report.terminal import plain, table
from mirage.tools.simulate import devices
from mirage.tools.simulate.report import BASELINES
from mirage.units import GIB

Of = Literal["mean", "min", "max"]
"""Statistic of a metric over the seeds."""
LARGE = 10_000
"""Numbers from here on are shown without decimals."""
LATENCIES = (
    *(("ttft_ms", "TTFT", "p50", "P50"), ("ttft_ms", "TTFT", "p99", "P99")),
    *(("tpot_ms", "TPOT", "p50", "P50"), ("tpot_ms", "TPOT", "p99", "P99")),
    *(("itl_ms", "ITL", "p50", "P50"), ("itl_ms", "ITL", "p99", "P99")),
    ("e2el_ms", "E2EL", "p99", "P99"),
)
METRICS = (
    Metric("completed", "requests completed", "high"),
    Metric("preemptions", "preemptions", "low"),
    Metric("output_throughput", "output tokens per s", "high", digits=1),
    Metric("request_throughput", "requests per s", "high", digits=2),
    *(
        Metric(f"{statistic}_{key}", f"{name} {label}, ms", "low", digits=1)
        for key, name, statistic, label in LATENCIES
    ),
    Metric("layers_remapped_max", "layers remapped, most"),
    Metric("bytes_streamed", "streamed, GiB", divide=GIB, digits=1),
    Metric("bytes_restored", "restored, GiB", divide=GIB, digits=1),
    Metric("moves", "moves of memory"),
)
IF_ANY = (
    *comparison.TIERS,
    Metric("experts_remapped_max", "experts of each layer given, most"),
    Metric("expert_loads", "experts loaded"),
    Metric("spills", "requests spilled at the end of a turn"),
    Metric("lost_device_lost", "requests lost with their device", "low"),
    Metric("lost_no_replica", "requests that found no replica", "low"),
    Metric("retried", "requests sent again to another replica"),
)
"""Metrics that are shown only if some policy has a value other than 0."""
VERDICT = {
    "output_throughput": "output tokens per s",
    "p99_ttft_ms": "TTFT P99",
    "p99_tpot_ms": "TPOT P99",
    "p99_itl_ms": "ITL P99",
}


def rows(
    result: Mapping[str, Any], tenant: str | None = None, of: Of = "mean"
) -> list[ComparisonRow]:
    """A row for each metric with a cell for each policy, which has the statistic `of` over the
    seeds, for one `tenant` or, if None, for all together."""
    means = _parts(result, tenant, "mean")
    some = [metric for metric in IF_ANY if any(part.get(metric.key) for part in means)]
    told = [replace(metric, if_any=False) for metric in some]
    wanted = [_fitting(metric, means) for metric in (*METRICS, *told)]
    return comparison.rows(_parts(result, tenant, of), result["policies"], wanted)


def show(result: Mapping[str, Any], output: Path, console: Console) -> None:
    """Print a result (see `report.build`), and the paths of its files in `output`."""
    title = result["experiment"]["title"]
    console.print(table(title, result["policies"], rows(result)))
    if each := list(devices.rows(result)):
        console.print(plain("devices: requests, TTFT P99", devices.columns(result), each))
    console.out(_seeds(result["seeds"]), highlight=False)
    for line in verdicts(result):
        console.out(line, highlight=False)
    console.out(f"Report: {output / 'report.html'}, {output / 'result.json'}", highlight=False)


def _parts(result: Mapping[str, Any], tenant: str | None, of: Of) -> list[dict[str, Any]]:
    """Figures of each policy, one number each; None for an unknown one."""
    parts = []
    for policy in result["policies"]:
        found = result["results"][policy]
        part = found["figures"] if tenant is None else found["tenants"][tenant]["figures"]
        parts.append({key: spread and spread[of] for key, spread in part.items()})
    return parts


def _fitting(metric: Metric, parts: Sequence[Mapping[str, Any]]) -> Metric:
    """The metric with one more digit for means of small counts, and without decimals for large
    numbers.
    """
    values = [part[metric.key] for part in parts if part[metric.key] is not None]
    most = max(values, default=0) / metric.divide
    counts = not metric.digits and metric.divide == 1
    if counts and most < 1000 and any(value % 1 for value in values):
        return replace(metric, digits=1)
    return replace(metric, digits=0) if most >= LARGE else metric


def _seeds(seeds: list[int]) -> str:
    if len(seeds) == 1:
        return f"Seed {seeds[0]}; ratios are against static."
    return f"Means of {len(seeds)} seeds; ratios are against static."


def verdicts(result: Mapping[str, Any]) -> list[str]:
    """One line for each policy that is no baseline, with its ratios to pooled, the harder
    baseline.
    """
    lines = []
    for policy in result["policies"]:
        against = result["results"][policy]["ratios"].get("pooled", {})
        said = [
            f"{label} {against[key]['of_means']:.2f}×"
            for key, label in VERDICT.items()
            if key in against
        ]
        if policy not in BASELINES and said:
            lines.append(f"{policy} against pooled: {', '.join(said)}")
    return lines
