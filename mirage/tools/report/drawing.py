"""Parts that the reports' pictures share: style, colours, grids, curves and axes."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, Literal, TypeVar

import matplotlib
import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from mirage.units import ceil_div

POLICY_COLOURS = {"static": "#7a828e", "pooled": "#d98a1f", "mirage": "#2456c7"}
OTHER_POLICIES = (
    *("#14866d", "#a13d8f", "#5b4bb5", "#c0504d"),
    *("#1f9bb4", "#8a7a2b", "#6b4a2f", "#d06a94"),
)
TENANT_COLOURS = ("#3b7dd8", "#e07b39", "#2f9e77", "#b5508f", "#8a7a2b", "#5f6fae", "#c0504d")
STYLE = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa1ab",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": "#4a515c",
    "grid.color": "#e6e8ec",
    "grid.linewidth": 0.7,
    "xtick.color": "#4a515c",
    "ytick.color": "#4a515c",
    "legend.frameon": False,
    "svg.fonttype": "none",
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
WIDTH = 10.5
"""Width of every picture in inches."""
T = TypeVar("T")
MAX_POINTS = 800
"""Most points of one line; more would not be visible."""
SHORTEST_MS = 0.1
"""Smallest latency in a picture; lower ones are drawn at this value. Tokens that arrived together
have a gap of 0.
"""

Array = npt.NDArray[np.float64]
Grid = Sequence[Sequence[Any]]
"""Matplotlib's axes, by row and column."""


def style() -> AbstractContextManager[None]:
    """Context in which figures are drawn and saved in the reports' style."""
    context: AbstractContextManager[None] = matplotlib.rc_context(STYLE)
    return context


def inline(figure: Figure, name: str) -> Markup:
    """The figure as an ``<svg>`` element without references to other files.

    `name` describes the picture for readers who cannot see it, and makes its ids unique on the
    page.
    """
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata=NO_METADATA)
    text = file.getvalue()
    said = f'<svg role="img" aria-label="{escape(name)}"'
    text = text[text.index("<svg") :].replace("<svg", said, 1)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)  # HTML knows them by itself
    return Markup(re.sub(r'<g id="[^"]*"', "<g", text))


def grid(rows: int, columns: int, height: float, **share: Any) -> tuple[Figure, Grid]:
    """A figure with equal cells, each `height` inches high, and its axes."""
    figure = Figure(figsize=(WIDTH, rows * height + 0.4), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **share)


def over_time(rows: int, policies: Sequence[str], height: float) -> tuple[Figure, Grid]:
    """Figure with a column for each policy under its name, and its cells. All cells share the time
    axis, and each row its value axis.
    """
    figure, cells = grid(rows, len(policies), height, sharex="all", sharey="row")
    for axes, policy in zip(cells[0], policies, strict=True):
        axes.set_title(policy)
    for axes in cells[-1]:
        axes.set_xlabel("s")
    return figure, cells


def capacity(
    axes: Any, t: Sequence[float] | Array, used: Array, granted: Array, colour: str
) -> None:
    """Draw granted memory as a line and used memory as an area."""
    axes.fill_between(t, used, step="post", color=colour, alpha=0.35, lw=0, label="in use")
    axes.step(t, granted, where="post", color=colour, lw=1.5, label="granted")


def shares(cells: Sequence[Sequence[Any]], latencies: Sequence[str]) -> None:
    """Finish the axes of distributions after drawing: shares of values over milliseconds."""
    for axes, name in zip(chain.from_iterable(cells), latencies, strict=True):
        axes.axhline(0.99, color="#9aa1ab", lw=0.8, ls=":")
        axes.set_title(f"{name.removesuffix('_ms').upper()}, ms")
        log_scale(axes)
    for row in cells:
        row[0].set_ylabel("share of values")
    cells[0][0].set_ylim(0, 1.02)


def log_scale(axes: Any, along: Literal["x", "y"] = "x") -> None:
    """Set a logarithmic scale on the axis `along`, with ticks in plain numbers, as many as the
    range needs."""
    axes.set(**{f"{along}scale": "log"})
    axis = {"x": axes.xaxis, "y": axes.yaxis}[along]
    low, high = axis.get_view_interval()
    within_decade = (1.0, 2.0, 5.0) if high / low < 500 else (1.0,)
    axis.set_major_locator(LogLocator(subs=within_decade))
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.set_minor_formatter(NullFormatter())


def counts_from_zero(axes: Any) -> None:
    """Set an axis for whole numbers, from 0 to at least 1, so that a line at 0 lies on the
    bottom.
    """
    top = axes.get_ylim()[1]
    axes.set_ylim(bottom=0, top=max(1.0, top))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def legend_below(figure: Figure, axes: Any) -> None:
    """Draw one legend for a whole row of cells."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, len(labels)))


def policy_colour(policies: Sequence[str], policy: str) -> str:
    """Colour of a policy, the same in all pictures of a report."""
    others = [name for name in policies if name not in POLICY_COLOURS]
    if policy in POLICY_COLOURS:
        return POLICY_COLOURS[policy]
    return OTHER_POLICIES[others.index(policy) % len(OTHER_POLICIES)]


def tenant_colour(tenants: Sequence[str], tenant: str) -> str:
    """Colour of a tenant, the same in all pictures of a report."""
    return TENANT_COLOURS[tenants.index(tenant) % len(TENANT_COLOURS)]


def cumulative(values: npt.ArrayLike) -> tuple[Array, Array]:
    """Sorted values, and the share of values at or below each; at most `MAX_POINTS` points."""
    x = np.sort(np.asarray(values, dtype=float))
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), MAX_POINTS)).astype(int))
    return x[chosen], (chosen + 1) / len(x)


def thin(samples: Sequence[T]) -> Sequence[T]:
    """At most `MAX_POINTS` of the samples, evenly chosen."""
    return samples[:: ceil_div(len(samples), MAX_POINTS) or 1]
