"""The pictures of a profile's page: measurements as points with quartiles, fits as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from mirage.tools.report import drawing
from mirage.tools.report.document import picture
from mirage.units import MIB

WAYS = {"one_way": ("one way", "#2456c7"), "mixed": ("each way, both at once", "#d98a1f")}
COLOURS = ("#2456c7", "#d98a1f", "#14866d", "#a13d8f", "#5b4bb5", "#c0504d")
"""Colours of the context lengths, in ascending order of the lengths."""

Result = Mapping[str, Any]
Sample = Mapping[str, Any]


@picture(
    "The link",
    "How fast a copy to the device is, by its size. Points are medians, bars quartiles, lines the "
    "fit. Where small copies are slow, their start is what costs.",
)
def link(result: Result) -> Figure:
    """Speed of the link in GB/s over the size of a copy."""
    figure, ((axes,),) = drawing.grid(1, 1, height=3.0)
    sizes = [copy["bytes"] for copy in result["copies"]]
    for way, (label, colour) in WAYS.items():
        times = [copy[f"{way}_s"] for copy in result["copies"]]
        rates = [[n / t[of] / 1e9 for n, t in zip(sizes, times, strict=True)] for of in _QUARTILES]
        _points(axes, [n / MIB for n in sizes], rates, colour, label)
        line = result["link"][way]
        fitted = [n / (line["fixed_s"] + line["each_s"] * n) / 1e9 for n in sizes]
        axes.plot([n / MIB for n in sizes], fitted, color=colour, lw=1.2, alpha=0.7)
    axes.set_xlabel("MiB in a copy")
    axes.set_title("GB/s, host to device")
    axes.set_ylim(bottom=0)
    drawing.log_scale(axes)
    drawing.legend_below(figure, axes)
    return figure


@picture(
    "Decode",
    "A step over the number of requests in it, by the tokens that each has in its KV cache. A bar "
    "is from quartile to quartile of all repetitions; the point is the median of the quickest.",
)
def decode(result: Result) -> Figure:
    """Time of decode steps over the requests in a step: a cell for each tenant, a colour for each
    context length in tokens.
    """
    figure, cells = _per_tenant(result)
    known = sorted({_context(s) for t in result["tenants"].values() for s in _decodes(t)})
    colours = {context: COLOURS[i % len(COLOURS)] for i, context in enumerate(known)}
    for axes, tenant in zip(cells, result["tenants"].values(), strict=True):
        for context in known:
            same = [sample for sample in _decodes(tenant) if _context(sample) == context]
            same.sort(key=lambda sample: int(sample["sequences"]))
            label = f"{context} tokens each"
            _against(axes, same, "sequences", colours[context], label)
        axes.set_xlabel("requests that decode")
    _scale(cells)
    _legend_of_all(figure, cells)
    return figure


@picture("Prefill", "A step that computes prompts and nothing else.")
def prefill(result: Result) -> Figure:
    """Time of prefill steps in milliseconds over tokens: a cell for each tenant."""
    figure, cells = _per_tenant(result)
    names = list(result["tenants"])
    for axes, (name, tenant) in zip(cells, result["tenants"].items(), strict=True):
        alone = [s for s in tenant["samples"] if s["prefill"] and not s["sequences"]]
        alone.sort(key=lambda sample: int(sample["prefill"]))
        _against(axes, alone, "prefill", drawing.tenant_colour(names, name), "prompts")
        axes.set_xlabel("tokens of prompts")
    _scale(cells)
    return figure


@picture(
    "Measured against fitted",
    "Every step that was measured. On the dotted line the simulator would be exact.",
)
def fit(result: Result) -> Figure:
    """Fitted milliseconds of each measured step over measured ones."""
    figure, ((axes,),) = drawing.grid(1, 1, height=3.4)
    names = list(result["tenants"])
    both: list[float] = []
    for name, tenant in result["tenants"].items():
        measured = [sample["seconds"] * 1e3 for sample in tenant["samples"]]
        fitted = [sample["fitted_s"] * 1e3 for sample in tenant["samples"]]
        axes.scatter(measured, fitted, s=16, color=drawing.tenant_colour(names, name), label=name)
        both += measured + fitted
    axes.plot([min(both), max(both)], [min(both), max(both)], color="#9aa1ab", lw=1, ls=":")
    axes.set_xlabel("measured, ms")
    axes.set_title("Fitted, ms")
    drawing.log_scale(axes)
    drawing.log_scale(axes, "y")
    drawing.legend_below(figure, axes)
    return figure


_QUARTILES = ("median", "high", "low")
"""Keys for the median, the low and the high quartile of a rate, whose low quartile is that of the
longest times.
"""


def _against(axes: Any, samples: Sequence[Sample], over: str, colour: str, label: str) -> None:
    """Draw samples as points with quartiles, and their fit as a line."""
    if not samples:
        return
    x = [sample[over] for sample in samples]
    seconds = [
        [sample["seconds"] * 1e3 for sample in samples],
        *([sample["steps"][of] * 1e3 for sample in samples] for of in ("low", "high")),
    ]
    _points(axes, x, seconds, colour, label)
    axes.plot(x, [sample["fitted_s"] * 1e3 for sample in samples], color=colour, lw=1.2, alpha=0.7)


def _points(
    axes: Any, x: Sequence[float], y: Sequence[Sequence[float]], colour: str, label: str
) -> None:
    """Draw points with bars. `y` has the values, their low and their high quartiles."""
    middle, low, high = y
    axes.vlines(x, low, high, color=colour, lw=1.6, alpha=0.5)
    axes.scatter(x, middle, s=16, color=colour, label=label, zorder=3)


def _per_tenant(result: Result) -> tuple[Figure, Sequence[Any]]:
    """A figure with a cell for each tenant, three in a row; returns it and the cells."""
    names = list(result["tenants"])
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, cells = drawing.grid(rows, columns, height=2.8, sharey="all")
    flat = [axes for row in cells for axes in row]
    for axes, name in zip(flat, names, strict=False):
        axes.set_title(f"{name}, ms")
    for axes in flat[len(names) :]:
        axes.set_axis_off()
    return figure, flat[: len(names)]


def _scale(cells: Sequence[Any]) -> None:
    """Set the scales of the cells after drawing, since they share the axis of values."""
    for axes in cells:
        axes.set_ylim(bottom=0)
        drawing.log_scale(axes)


def _legend_of_all(figure: Figure, cells: Sequence[Any]) -> None:
    """Draw one legend of all lines in the cells, each once."""
    found: dict[str, Any] = {}
    for axes in cells:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        found.values(), found.keys(), loc="outside lower center", ncols=max(1, len(found))
    )


def _decodes(tenant: Mapping[str, Any]) -> list[Sample]:
    return [s for s in tenant["samples"] if s["sequences"] and not s["prefill"]]


def _context(sample: Sample) -> int:
    """Mean tokens of a request, rounded down to a multiple of 16, since some requests have decoded
    a few more.
    """
    each = sample["context"] / sample["sequences"]
    return int(each // 16 * 16)
