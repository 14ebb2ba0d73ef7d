"""Pictures of a decoding batch's result; one function is one picture.

A result is as `mirage.tools.simulate.pictures` takes them: figures by policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.decode.metrics import WHERE
from mirage.tools.report.drawing import grid, legend_below
from mirage.tools.simulate.pictures import bars, bars_height
from mirage.units import GIB

FOUND = {
    "device": ("on the device", "#2456c7"),
    "early": ("came ahead of need", "#14866d"),
    "host": ("in host memory", "#d98a1f"),
    "ssd": ("on the SSD", "#a13d8f"),
}
"""Label and colour of each place."""
WAITED = "#c0504d"
COMPUTED = "#9aa1ab"
UP, DOWN = ("up, to the device", "#2456c7"), ("down, from the device", "#d98a1f")

Result = Mapping[str, Any]


def throughput(result: Result) -> Figure:
    """Tokens a second and the time of a step's 95th percentile: a bar per policy."""
    figure, (cells,) = grid(1, 2, height=bars_height(result), sharey="all")
    for axes, (key, title) in zip(
        cells,
        (("output_throughput", "Output tokens per s"), ("p95_tpot_ms", "TPOT P95, ms")),
        strict=True,
    ):
        bars(axes, result, key)
        axes.set_title(title)
    return figure


def hits_by_tier(result: Result) -> Figure:
    """Places of blocks when their requests' turns began: per cent, a stack per policy."""
    figure, (cells,) = grid(1, 1, height=bars_height(result) + 0.3)
    axes = cells[0]
    numbers = {where: _means(result, f"blocks_from_{where}") for where in WHERE}
    total = np.maximum(sum(numbers.values()), 1e-9)
    _stack(axes, result, {FOUND[w]: 100 * n / total for w, n in numbers.items() if n.any()})
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the blocks of requests whose turns began")
    legend_below(figure, axes)
    return figure


def stalls(result: Result) -> Figure:
    """Parts of a step, computing and waiting for blocks: milliseconds, on average."""
    figure, (cells,) = grid(1, 1, height=bars_height(result) + 0.3)
    steps = _means(result, "steps")
    waited = 1e3 * _means(result, "waited_s") / steps
    computed = 1e3 * _means(result, "duration") / steps - waited
    parts = {("computing", COMPUTED): computed, ("waiting for blocks", WAITED): waited}
    _stack(cells[0], result, parts)
    cells[0].set_xlabel("ms of a step")
    legend_below(figure, cells[0])
    return figure


def traffic(result: Result) -> Figure:
    """Traffic over the links in all turns together: GiB, up and down."""
    figure, (cells,) = grid(1, 1, height=bars_height(result) + 0.3)
    parts = {UP: _means(result, "kv_bytes_up") / GIB, DOWN: _means(result, "kv_bytes_down") / GIB}
    _stack(cells[0], result, parts)
    cells[0].set_xlabel("GiB of KV blocks")
    legend_below(figure, cells[0])
    return figure


def _stack(axes: Any, result: Result, parts: Mapping[tuple[str, str], Any]) -> None:
    """Draw a horizontal bar for each policy, made of the parts, each with a label and a colour."""
    policies = result["policies"]
    left = np.zeros(len(policies))
    for (label, colour), values in parts.items():
        axes.barh(policies, values, left=left, color=colour, height=0.7, label=label)
        left = left + values
    axes.set_ylim(len(policies) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def _means(result: Result, key: str) -> Any:
    """Mean over seeds of a figure, for each policy."""
    figures = [result["results"][policy]["figures"] for policy in result["policies"]]
    return np.array([part[key]["mean"] for part in figures])
