"""The pictures of ``tune.html``, drawn from the report's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

from matplotlib.figure import Figure

from mirage.tools.report import drawing
from mirage.tools.report.document import picture
from mirage.tools.tune.curves import Curve
from mirage.tools.tune.goals import unit
from mirage.tools.tune.space import FIXED

TUNED, OTHER, GOOD = "#2456c7", "#7a828e", "#14866d"
LOADED = (10, 30, 50, 70, 90)
"""Percentages of the layers whose load time is drawn."""
MOST_KNOBS = 12
SHOWN = (
    ("goodput", "goodput, requests/s"),
    ("throughput", "output tokens/s"),
    ("ttft_p99", "TTFT P99, ms"),
    ("tpot_p50", "TPOT P50, ms"),
    ("itl_p99", "ITL P99, ms"),
)
Report = Mapping[str, Any]


@picture(
    "What hides behind compute",
    "Blue: how long one decode step computes, by the requests in its batch. Orange: how long it "
    "takes to load that part of the model's layers over the link. Where blue is above an orange "
    "line, so many layers can be streamed and nobody waits. Batches go as far as the model's "
    "limits and the device allow.",
)
def crossing(curves: Sequence[Curve]) -> Figure:
    """Compute time of a decode step and load times of layers over the batch: a cell for each
    model.
    """
    figure, cells = drawing.grid(1, len(curves), 3.0)
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
        drawing.log_scale(axes)
    cells[0][0].set_ylabel("ms")
    drawing.legend_below(figure, cells[0][0])
    return figure


def _crosses(curve: Curve, loads: float) -> float | None:
    """First batch at which compute takes as long as the loads; None if there is none in the
    picture.
    """
    if curve.compute_ms[0] >= loads:
        return curve.batches[0]
    points = zip(curve.batches, curve.compute_ms, strict=True)
    for (batch, before), (after, ms) in pairwise(points):
        if ms >= loads:
            return batch + (after - batch) * (loads - before) / (ms - before)
    return None


@picture(
    "How much to remap",
    "The same percentage as the most that every model may give, all else as it is, on windows that "
    "the search has not seen. Goodput and tokens: more is better; latencies: less. A flat line "
    "says that what models may give is not what bounds them.",
)
def percentages(report: Report) -> Figure:
    """Figures over a fixed percentage: a cell for each figure, with lines for the tuned and default
    configurations.
    """
    held = report["held_back"]
    figure, cells = drawing.grid(1, len(SHOWN), 2.5)
    for axes, (key, label) in zip(cells[0], SHOWN, strict=True):
        rows = [held[f"fixed {percent:g} %"] for percent in FIXED]
        axes.plot(FIXED, [row[key] for row in rows], "o-", color=OTHER, ms=4, label="all models")
        for name, colour, style in (("default", "#d98a1f", "--"), ("tuned", TUNED, "-")):
            axes.axhline(held[name][key], color=colour, ls=style, lw=1.4, label=name)
        axes.set_title(label)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("% of the layers")
    drawing.legend_below(figure, cells[0][0])
    return figure


@picture(
    "Which setting mattered",
    "How much of the difference between trials each setting explains (PED-ANOVA). A setting that "
    "matters little is left as it was.",
)
def knobs(report: Report) -> Figure:
    """Importance of the knobs: a bar for each."""
    weights = list(report["importances"].items())[:MOST_KNOBS][::-1]
    figure, cells = drawing.grid(1, 1, 0.4 + 0.24 * max(1, len(weights)))
    axes = cells[0][0]
    axes.barh([name for name, _ in weights], [weight * 100 for _, weight in weights], color=TUNED)
    axes.set_xlabel("% of the difference between trials")
    axes.grid(visible=False, axis="y")
    return figure


@picture(
    "Throughput against latency",
    "Every trial of the search that saw all windows. Further left and further up is better; on the "
    "green line one is had only at the price of the other.",
)
def front(report: Report, latency: str) -> Figure:
    """Throughput over latency: a point for each complete trial, and a line through those that no
    other beats in both.
    """
    figure, cells = drawing.grid(1, 1, 3.2)
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
    drawing.legend_below(figure, axes)
    return figure


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other point beats in both coordinates, in order; less of the first and more of
    the second is better.
    """
    kept: list[tuple[float, float]] = []
    for point in sorted(set(points), key=lambda p: (p[0], -p[1])):
        if not kept or point[1] > kept[-1][1]:
            kept.append(point)
    return kept


@picture(
    "How sure is it?",
    "Each dot deals the unseen requests to the models in another way; the bar is all of them "
    "together. Where dots of two rows overlap widely, their difference is chance.",
)
def spread(report: Report) -> Figure:
    """Values of the objective: a row for each contender, a dot for each seed."""
    held, objective = report["held_back"], report["objective"]
    figure, cells = drawing.grid(1, 1, 0.5 + 0.26 * len(held))
    axes = cells[0][0]
    for row, (name, each) in enumerate(held.items()):
        values = [seed[objective] for seed in each["seeds"] if isfinite(seed[objective])]
        colour = {"tuned": TUNED, "default": drawing.TENANT_COLOURS[1]}.get(name, OTHER)
        axes.plot(values, [row] * len(values), "o", color=colour, ms=6, alpha=0.6)
        if isfinite(each[objective]):
            axes.plot([each[objective]], [row], "|", color=colour, ms=16, mew=2)
    axes.set_yticks(range(len(held)), list(held))
    axes.invert_yaxis()
    axes.set_xlabel(f"{objective}, {unit(objective)}")
    return figure


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
