"""The pictures of ``tune.html``, drawn from the report's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

from matplotlib.figure import Figure

from mirage.tools.report.drawing import TENANT_COLOURS, grid, legend_below, log_scale
from mirage.tools.tune.curves import Curve
from mirage.tools.tune.goals import unit
from mirage.tools.tune.space import FIXED

TUNED, OTHER, GOOD = "#2456c7", "#7a828e", "#14866d"
LOADED = (10, 30, 50, 70, 90)
"""Per cent of the layers whose load time is drawn."""
MOST_KNOBS = 12
SHOWN = (
    ("goodput", "goodput, requests/s"),
    ("throughput", "output tokens/s"),
    ("ttft_p99", "TTFT P99, ms"),
    ("tpot_p50", "TPOT P50, ms"),
    ("itl_p99", "ITL P99, ms"),
)
Report = Mapping[str, Any]


def crossing(curves: Sequence[Curve]) -> Figure:
    """Compute of a step over batch, and the time to load so much of the layers."""
    figure, cells = grid(1, len(curves), 3.0)
    for axes, curve in zip(cells[0], curves, strict=True):
        axes.plot(curve.batches, curve.compute_ms, color=TUNED, label="compute of a decode step")
        for percent in LOADED:
            loads = curve.load_ms * percent / 100
            axes.axhline(loads, color="#d98a1f", lw=1, label="loading layers" * (percent == 10))
            axes.annotate(
                f" {percent} %",
                (curve.batches[-1], loads),
                va="center",
                fontsize=7,
                color="#b06c10",
            )
            if (batch := _crosses(curve, loads)) is not None:
                axes.plot([batch], [loads], "o", color=GOOD, ms=5)
        axes.plot([], [], "o", color=GOOD, label="from here on it hides")
        axes.set_title(curve.name)
        axes.set_xlabel("requests in a batch")
        axes.set_yscale("log")
        log_scale(axes)
    cells[0][0].set_ylabel("ms")
    legend_below(figure, cells[0][0])
    return figure


def _crosses(curve: Curve, loads: float) -> float | None:
    """The first batch at which compute is as long as the loads; None beyond the picture."""
    if curve.compute_ms[0] >= loads:
        return curve.batches[0]
    points = zip(curve.batches, curve.compute_ms, strict=True)
    for (batch, before), (after, ms) in pairwise(points):
        if ms >= loads:
            return batch + (after - batch) * (loads - before) / (ms - before)
    return None


def percentages(report: Report) -> Figure:
    """What each fixed percentage gives on held-back windows, the tuned one beside them."""
    held = report["held_back"]
    figure, cells = grid(1, len(SHOWN), 2.5)
    for axes, (key, label) in zip(cells[0], SHOWN, strict=True):
        rows = [held[f"fixed {percent:g} %"] for percent in FIXED]
        axes.plot(FIXED, [row[key] for row in rows], "o-", color=OTHER, ms=4, label="all models")
        for name, colour, style in (("default", "#d98a1f", "--"), ("tuned", TUNED, "-")):
            axes.axhline(held[name][key], color=colour, ls=style, lw=1.4, label=name)
        axes.set_title(label)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("% of the layers")
    legend_below(figure, cells[0][0])
    return figure


def knobs(report: Report) -> Figure:
    """How much of what trials differ by each knob explains."""
    weights = list(report["importances"].items())[:MOST_KNOBS][::-1]
    figure, cells = grid(1, 1, 0.4 + 0.24 * max(1, len(weights)))
    axes = cells[0][0]
    axes.barh([name for name, _ in weights], [weight * 100 for _, weight in weights], color=TUNED)
    axes.set_xlabel("% of the difference between trials")
    axes.grid(visible=False, axis="y")
    return figure


def front(report: Report, latency: str) -> Figure:
    """All whole trials, throughput against a latency, and those that none is better than."""
    figure, cells = grid(1, 1, 3.2)
    axes = cells[0][0]
    points = [
        (trial["figures"][latency], trial["figures"]["throughput"])
        for trial in report["trials"]
        if trial["figures"] and isfinite(trial["figures"][latency])
    ]
    axes.plot(*_columns(points), "o", color=OTHER, ms=4, alpha=0.6, label="a trial")
    axes.plot(*_columns(pareto(points)), "o-", color=GOOD, ms=5, label="none is better in both")
    if points:
        axes.plot(*points[0], "D", color="#d98a1f", ms=8, label="as it is")
    axes.set_xlabel(f"{latency.replace('_', ' ').upper()}, ms")
    axes.set_ylabel("output tokens/s")
    legend_below(figure, axes)
    return figure


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (less is better, more is better) those that no other beats in both, in order."""
    kept: list[tuple[float, float]] = []
    for point in sorted(set(points), key=lambda p: (p[0], -p[1])):
        if not kept or point[1] > kept[-1][1]:
            kept.append(point)
    return kept


def spread(report: Report) -> Figure:
    """The objective of each contender, seed by seed, on held-back windows."""
    held, objective = report["held_back"], report["objective"]
    figure, cells = grid(1, 1, 0.5 + 0.26 * len(held))
    axes = cells[0][0]
    for row, (name, each) in enumerate(held.items()):
        values = [seed[objective] for seed in each["seeds"] if isfinite(seed[objective])]
        colour = TUNED if name == "tuned" else TENANT_COLOURS[1] if name == "default" else OTHER
        axes.plot(values, [row] * len(values), "o", color=colour, ms=6, alpha=0.6)
        if isfinite(each[objective]):
            axes.plot([each[objective]], [row], "|", color=colour, ms=16, mew=2)
    axes.set_yticks(range(len(held)), list(held))
    axes.invert_yaxis()
    axes.set_xlabel(f"{objective}, {unit(objective)}")
    return figure


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
