"""``report.html`` of a simulation: one file that needs nothing else, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from mirage.profiles import Model
from mirage.tools.report import comparison, drawing
from mirage.tools.report.comparison import Cell
from mirage.tools.report.page import Picture, inline, picture, template
from mirage.tools.simulate import pictures, table
from mirage.units import GIB, MIB, ceil_div

TEMPLATE = "report.html.j2"
COLUMNS = 4
"""Policies beside each other in one picture."""
UNITS = {
    "_gib": ", GiB",
    "_mib": ", MiB",
    "_mb": ", MB",
    "_gb_s": ", GB/s",
    "_tflop_s": ", TFLOP/s",
    "_ms": ", ms",
    "_us": ", µs",
}
MEANING = {
    "static": "each tenant keeps the memory of its share",
    "pooled": "KV memory moves between tenants; parameters stay where they are",
    "swap": "as static, and KV that finds no place lies in host memory (Pie, arXiv 2411.09317)",
    "mirage-experts": "as mirage, and a mixture may give experts that it hardly routes to instead",
    "pooled-tiers": "as pooled, and KV blocks that leave the device go to the tiers below",
    "mirage-tiers": "as mirage, and KV blocks that leave the device go to the tiers below",
    "mirage": "KV memory moves, and layers give theirs to it and are streamed from host memory",
}

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A figure's label and, per policy, its cell and its range over the seeds."""

    label: str
    cells: list[tuple[Cell, str | None]]


WHOLE: tuple[tuple[str, str, Callable[[Result], Figure]], ...] = (
    ("Throughput", "More is better. The whisker is the range over the seeds.", pictures.throughput),
    ("Latencies", "Less is better; each picture has its own scale.", pictures.latencies),
    (
        "Latency distributions",
        "Share of values at or under x; further left is better. The line is the mean over the "
        "seeds, percentile by percentile, the band their range, the dotted line P99. TTFT counts "
        "from a request's arrival, ITL is every single gap between tokens.",
        pictures.distributions,
    ),
)


def render(result: Result) -> str:
    """The page for a result (see `report.build`); the same for the same result."""
    policies = result["policies"]
    return template(Path(__file__).with_name(TEMPLATE)).render(
        result=result,
        experiment=result["experiment"],
        policies=policies,
        colours=[drawing.policy_colour(policies, policy) for policy in policies],
        verdicts=table.verdicts(result),
        table=rows(result),
        tenants={name: rows(result, name) for name in result["shapes"]},
        pictures=list(_pictures(result)),
        meanings={policy: meaning(result, policy) for policy in policies},
        models=[_model(result, tenant) for tenant in result["experiment"]["tenants"]],
        settings=dict(settings(result["experiment"])),
        hardware=hardware(result["hardware"]),
    )


def rows(result: Result, tenant: str | None = None) -> list[Row]:
    """The table of all tenants or of one, with ranges if there are several seeds."""
    return with_ranges(result, lambda of: table.rows(result, tenant, of))


def with_ranges(result: Result, rows_of: Callable[[table.Of], list[comparison.Row]]) -> list[Row]:
    """A table of means, with the range of each cell over the seeds if there are several."""
    means = rows_of("mean")
    if len(result["seeds"]) == 1:
        return [Row(row.label, [(cell, None) for cell in row.cells]) for row in means]
    found = []
    for mean, low, high in zip(means, rows_of("min"), rows_of("max"), strict=True):
        ranges = [_range(a, b) for a, b in zip(low.cells, high.cells, strict=True)]
        found.append(Row(mean.label, list(zip(mean.cells, ranges, strict=True))))
    return found


def meaning(result: Result, policy: str) -> str:
    """What a policy is, or in which settings it differs from mirage."""
    if policy in MEANING:
        return MEANING[policy]
    changes = result["variants"][policy]["remap"].items()
    return "as mirage, with " + ", ".join(f"{key} {_said(value)}" for key, value in changes)


def _range(low: Cell, high: Cell) -> str | None:
    return None if low.text == high.text else f"{low.text} – {high.text}"


def _pictures(result: Result) -> Iterator[Picture]:
    for title, note, draw in WHOLE:
        yield picture(title, note, partial(draw, result))
    if pictures.has_timelines(result):
        with drawing.style():
            yield from _memory(result)


def _memory(result: Result) -> Iterator[Picture]:
    seed = f"Seed {result['seeds'][0]}."
    swap = " Under swap, what is above the line lies in host memory."
    yield Picture(
        "KV capacity and use",
        f"{seed} Memory granted for KV (line) and in use (area) over time. Where the area meets "
        "the line, requests wait or are preempted."
        f"{swap if 'swap' in result['policies'] else ''}",
        _side_by_side(result, result["policies"], pictures.kv_memory),
    )
    remapping = [p for p in result["policies"] if pictures.most_remapped(result, p)]
    if remapping:
        yield Picture(
            "Layers remapped",
            f"{seed} Layers whose memory serves as KV cache; they are streamed from host memory. "
            "Policies that never remapped are left out.",
            _side_by_side(result, remapping, pictures.layers_remapped),
        )


def _side_by_side(
    result: Result, policies: list[str], draw: Callable[[Result, list[str]], Figure]
) -> list[Markup]:
    """As many drawings of the same width as it takes with at most `COLUMNS` policies in each."""
    drawings = ceil_div(len(policies), COLUMNS)
    width = ceil_div(len(policies), drawings)
    padded = policies + [""] * (drawings * width - len(policies))
    parts = [padded[start : start + width] for start in range(0, len(padded), width)]
    what = draw.__name__.replace("_", " ")
    return [inline(draw(result, p), f"{what}: {', '.join(filter(None, p))}") for p in parts]


def _model(result: Result, tenant: Mapping[str, Any]) -> dict[str, Any]:
    """One tenant, and the sizes of its model."""
    model = Model.model_validate(result["models"][tenant["name"]])
    return {
        **tenant,
        "title": model.title,
        "source": model.source,
        "layers": model.layers,
        "parameters_gib": model.parameter_bytes / GIB,
        "layer_mib": result["shapes"][tenant["name"]]["layer_bytes"] / MIB,
        "kv_token_kib": model.kv_token_bytes / 1024,
        "lengths": _drawn(result["lengths"].get(tenant["name"])),
    }


def _drawn(lengths: Mapping[str, Any] | None) -> str:
    if lengths is None:
        return "the trace's"
    return (
        f"{lengths['name']}: lognormal, prompts of mean {lengths['prompt_mean']:g} "
        f"(sigma {lengths['prompt_sigma']:g}), outputs of mean {lengths['output_mean']:g} "
        f"(sigma {lengths['output_sigma']:g})"
    )


def settings(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every setting of the experiment by its dotted name, but what has a table of its own."""
    for key, value in part.items():
        if isinstance(value, Mapping) and value:
            yield from settings(value, f"{prefix}{key}.")
        elif key not in ("tenants", "title", "policies"):
            yield f"{prefix}{key}", _said(value)


def hardware(hardware: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name with its unit, value and source of each figure."""
    figures = {key: figure for key, figure in hardware.items() if key != "tiers"}
    for medium, tier in (hardware["tiers"] or {}).items():
        figures |= {f"{medium}_{key}": figure for key, figure in (tier or {}).items()}
    return [
        (_label(key), f"{figure['value']:,g}", figure["source"])
        for key, figure in figures.items()
        if isinstance(figure, Mapping)
    ]


def _label(key: str) -> str:
    ending = next((e for e in UNITS if key.endswith(e)), "")
    return key.removesuffix(ending).replace("_", " ") + UNITS.get(ending, "")


def _said(value: Any) -> str:
    if value is None or value == {}:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
