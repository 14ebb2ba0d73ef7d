"""The pictures of a simulation's report (see `report.build`); each function draws one.

A policy has the same colour in all of them, and so has a tenant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mirage.simulate.run import PLOTTED
from mirage.tools.report import drawing
from mirage.tools.report.document import picture
from mirage.units import GIB

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms")
DISTRIBUTED = ("ttft_ms", "itl_ms")

Result = Mapping[str, Any]


@picture("Throughput", "More is better. The whisker is the range over the seeds.")
def throughput(result: Result) -> Figure:
    """Output tokens and requests per second, as a bar for each policy."""
    figure, (cells,) = drawing.grid(1, 2, height=bars_height(result), sharey="all")
    for axes, key, title in zip(
        cells,
        ("output_throughput", "request_throughput"),
        ("Output tokens per s", "Requests per s"),
        strict=True,
    ):
        bars(axes, result, key)
        axes.set_title(title)
    return figure


@picture("Latencies", "Less is better; each picture has its own scale.")
def latencies(result: Result) -> Figure:
    """P50 (upper row) and P99 of TTFT, TPOT and ITL, as a bar for each policy."""
    figure, cells = drawing.grid(2, len(LATENCIES), height=bars_height(result), sharey="all")
    for row, statistic in zip(cells, ("p50", "p99"), strict=True):
        for axes, name in zip(row, LATENCIES, strict=True):
            bars(axes, result, f"{statistic}_{name}")
            axes.set_title(f"{name.removesuffix('_ms').upper()} {statistic.upper()}, ms")
    return figure


@picture(
    "Latency distributions",
    "Share of values at or under x; further left is better. The line is the mean over the seeds, "
    "percentile by percentile, the band their range, the dotted line P99. TTFT counts from a "
    "request's arrival, ITL is every single gap between tokens.",
)
def distributions(result: Result) -> Figure:
    """Distributions of TTFT and ITL, as a line for each policy."""
    figure, (cells,) = drawing.grid(1, 2, height=3.2, sharey="all")
    share = np.array(PLOTTED) / 100
    for axes, name in zip(cells, DISTRIBUTED, strict=True):
        for policy in result["policies"]:
            curve = result["results"][policy]["curves"][name]
            if curve["mean"]:
                colour = drawing.policy_colour(result["policies"], policy)
                low, mean, high = (
                    np.maximum(curve[of], drawing.SHORTEST_MS) for of in ("min", "mean", "max")
                )
                axes.fill_betweenx(share, low, high, color=colour, alpha=0.18, lw=0)
                axes.plot(mean, share, color=colour, lw=1.8, label=policy)
    drawing.shares([cells], DISTRIBUTED)
    drawing.legend_below(figure, cells[0])
    return figure


@picture(
    "KV capacity and use",
    "Seed {seed}. Memory granted for KV (line) and in use (area) over time. Where the area meets "
    "the line, requests wait or are preempted.",
)
def kv_memory(result: Result, policies: Sequence[str]) -> Figure:
    """KV memory over time: a row for each tenant, a column for each policy.

    A column whose name in `policies` is empty is left empty.
    """
    tenants = list(result["shapes"])
    figure, cells = drawing.over_time(len(tenants), policies, height=1.7)
    for row, tenant in zip(cells, tenants, strict=True):
        shape, colour = result["shapes"][tenant], drawing.tenant_colour(tenants, tenant)
        block = shape["extent_bytes"] / shape["extent_blocks"]
        for axes, policy in _shown(row, policies):
            line = result["results"][policy]["timelines"][tenant]
            used = np.array(line["kv_used_blocks"]) * block / GIB
            granted = np.array(line["kv_extents"]) * shape["extent_bytes"] / GIB
            drawing.capacity(axes, line["t"], used, granted, colour)
        row[0].set_ylabel(f"{tenant}\nKV, GiB")
        row[0].set_ylim(0, 1.05 * _most_kv(result, tenant) or 1)
    _same_time(cells[0][0], result)
    cells[0][0].legend(loc="best", fontsize=8)
    return figure


@picture(
    "Layers remapped",
    "Seed {seed}. Layers whose memory serves as KV cache; they are streamed from host memory. "
    "Policies that never remapped are left out.",
)
def layers_remapped(result: Result, policies: Sequence[str]) -> Figure:
    """Layers remapped over time: a line for each tenant, a column for each policy. A column whose
    name in `policies` is empty is left empty."""
    tenants = list(result["shapes"])
    figure, (cells,) = drawing.over_time(1, policies, height=2.3)
    for axes, policy in _shown(cells, policies):
        for tenant in tenants:
            line = result["results"][policy]["timelines"][tenant]
            colour = drawing.tenant_colour(tenants, tenant)
            axes.step(
                line["t"], line["layers_remapped"], where="post", color=colour, lw=1.3, label=tenant
            )
    cells[0].set_ylabel("layers remapped")
    most = max(most_remapped(result, policy) for policy in result["policies"])
    cells[0].set_ylim(0, 1.05 * most)
    drawing.counts_from_zero(cells[0])
    _same_time(cells[0], result)
    drawing.legend_below(figure, cells[0])
    return figure


def has_timelines(result: Result) -> bool:
    """True if any engine's memory was sampled."""
    return any(line["t"] for line in _lines(result))


def most_remapped(result: Result, policy: str) -> int:
    """The most layers that one engine had given away in any sample under a policy."""
    lines = result["results"][policy]["timelines"].values()
    return max((max(line["layers_remapped"], default=0) for line in lines), default=0)


def bars_height(result: Result) -> float:
    """Height in inches of a cell with a bar for each policy."""
    return 0.7 + 0.27 * len(result["policies"])


def bars(axes: Any, result: Result, key: str) -> None:
    """Draw a horizontal bar for each policy, from the top down: the mean with its number, and the
    range over seeds.
    """
    policies = result["policies"]
    spreads = [result["results"][policy]["figures"][key] for policy in policies]
    known = [spread or dict.fromkeys(("mean", "min", "max"), 0.0) for spread in spreads]
    means = np.array([spread["mean"] for spread in known])
    below = means - [spread["min"] for spread in known]
    above = np.array([spread["max"] for spread in known]) - means
    colours = [drawing.policy_colour(policies, policy) for policy in policies]
    axes.barh(policies, means, color=colours, height=0.7)
    if len(result["seeds"]) > 1:
        axes.errorbar(means, policies, xerr=(below, above), fmt="none", ecolor="#20242b", lw=1)
    for row, spread in enumerate(spreads):
        end, label = (spread["max"], _number(spread["mean"])) if spread else (0, "–")
        axes.annotate(
            label, (end, row), (4, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_ylim(len(policies) - 0.5, -0.5)
    axes.set_xlim(0, 1.22 * max(spread["max"] for spread in known) or 1)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")


def _number(value: float) -> str:
    """A number with three significant digits; from 100 on all digits before the point."""
    return f"{value:,.0f}" if value >= 100 or not value else f"{value:#.3g}"


def _shown(row: Sequence[Any], policies: Sequence[str]) -> Iterator[tuple[Any, str]]:
    """The cells of a row that belong to a policy; cells without a policy are hidden."""
    for axes, policy in zip(row, policies, strict=True):
        axes.set_visible(bool(policy))
        if policy:
            yield axes, policy


def _lines(result: Result) -> list[Mapping[str, Any]]:
    parts = [result["results"][policy]["timelines"] for policy in result["policies"]]
    return [line for part in parts for line in part.values()]


def _most_kv(result: Result, tenant: str) -> float:
    """The most KV memory in GiB that a tenant was granted under any policy."""
    parts = [result["results"][policy]["timelines"][tenant] for policy in result["policies"]]
    extents = max(max(line["kv_extents"], default=0) for line in parts)
    return float(extents * result["shapes"][tenant]["extent_bytes"] / GIB)


def _same_time(axes: Any, result: Result) -> None:
    """Set the time axis that all pictures of memory share, up to the end of the longest run."""
    axes.set_xlim(0, max((line["t"][-1] for line in _lines(result) if line["t"]), default=0) or 1)
