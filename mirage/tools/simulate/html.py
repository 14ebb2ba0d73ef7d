"""``report.html`` of a simulation: one self-contained file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from mirage.profiles import Model
from mirage.tools.report import comparison, document, drawing
from mirage.tools.report.document import Document, Picture, Section, facts
from mirage.tools.simulate import devices, pictures, table
from mirage.tools.simulate.modelled import modelled
from mirage.units import GIB, MIB, ceil_div

COLUMNS = 4
"""Most policies beside each other in one picture."""
UNITS = {
    "_gib": ", GiB",
    "_mib": ", MiB",
    "_mb": ", MB",
    "_gb_s": ", GB/s",
    "_tflop_s": ", TFLOP/s",
    "_ms": ", ms",
    "_us": ", µs",
}

OWN_TABLES = ("tenants", "title", "policies", "devices", "placement")
"""Keys of an experiment that have a place of their own on the page."""

Result = Mapping[str, Any]

TENANTS = (
    *("tenant", "share", "requests per s", "priority", "model", "layers", "parameters", "a layer"),
    "KV of a token",
)


def render(result: Result) -> str:
    """The page for a result (see `report.build`); the same text for the same result."""
    asked, policies = result["experiment"], result["policies"]
    tenants = {name: rows(result, name) for name in result["shapes"]}
    figures = document.side_by_side(_note(result), policies, rows(result), tenants)
    limits = modelled(asked["kv_blocks"], "devices" in result)
    meanings = facts((policy, meaning(result, policy)) for policy in policies)
    return Document(
        f"MIRAGE simulation: {asked['title']}",
        asked["title"],
        [
            f"Simulated on {result['hardware']['title']}, {seeds(result)}, "
            f"{asked['sharing']['mode']} sharing. These figures are computed, not measured.",
            *(document.verdict(each, "open") for each in table.verdicts(result)),
        ],
        [
            Section("Side by side", [*figures, Markup("<h3>The policies</h3>"), meanings]),
            *_pictures(result),
            *_devices(result),
            Section("The tenants", list(_tenants(result))),
            hardware(result["hardware"]),
            Section(
                "The settings",
                ["The experiment’s file with all its defaults.", facts(settings(asked), "pairs")],
            ),
            Section(
                "What is modelled, and what is not",
                list(limits),
            ),
        ],
    ).render()


def seeds(result: Result) -> str:
    """Number of seeds, and the first ten of them, as text."""
    found = result["seeds"]
    more = ", …" if len(found) > 10 else ""
    return f"{len(found)} seed{'s' * (len(found) > 1)} ({', '.join(map(str, found[:10]))}{more})"


def ranges(result: Result) -> str:
    """Note on the table's means and ranges; empty for a single seed."""
    return "Means over the seeds, their range below. " if len(result["seeds"]) > 1 else ""


def _note(result: Result) -> Markup:
    peak = " Only what finished after the peak counts."
    return Markup(
        "<p>{}The best of a row is marked; the small figure beside it is the ratio to static. "
        "Every policy gets the same requests. Latencies as <code>vllm bench serve</code> defines "
        "them.{}</p>"
    ).format(ranges(result), peak if result["experiment"]["workload"]["peak"] else "")


def rows(result: Result, tenant: str | None = None) -> list[comparison.ComparisonRow]:
    """Rows for one `tenant` or, if None, for all together, with ranges if there are several
    seeds."""
    return with_ranges(result, lambda of: table.rows(result, tenant, of))


def with_ranges(
    result: Result, rows_of: Callable[[table.Of], list[comparison.ComparisonRow]]
) -> list[comparison.ComparisonRow]:
    """Rows of means, with the range of each cell over the seeds if there are several."""
    means = rows_of("mean")
    if len(result["seeds"]) == 1:
        return means
    return [
        comparison.ComparisonRow(mean.label, [*map(_ranged, mean.cells, low.cells, high.cells)])
        for mean, low, high in zip(means, rows_of("min"), rows_of("max"), strict=True)
    ]


def _ranged(mean: comparison.Cell, low: comparison.Cell, high: comparison.Cell) -> comparison.Cell:
    return replace(mean, range=None if low.text == high.text else f"{low.text} – {high.text}")


def meaning(result: Result, policy: str) -> str:
    """Description of a policy, or the settings in which it differs from mirage."""
    variant = result["variants"][policy]
    if variant["meaning"]:
        return str(variant["meaning"])
    changes = variant["remap"].items()
    return "as mirage, with " + ", ".join(f"{key} {_said(value)}" for key, value in changes)


def _pictures(result: Result) -> Iterator[Section]:
    for drawn in (pictures.throughput, pictures.latencies, pictures.distributions):
        yield drawn.section(result)
    if not pictures.has_timelines(result):
        return
    remapping = [p for p in result["policies"] if pictures.most_remapped(result, p)]
    yield _columns(result, result["policies"], pictures.kv_memory)
    if remapping:
        yield _columns(result, remapping, pictures.layers_remapped)


def _devices(result: Result) -> Iterator[Section]:
    if each := list(devices.rows(result)):
        table_ = document.table(devices.columns(result), each, "text")
        yield Section("The devices", [devices.ABOUT, table_])


def _columns(result: Result, policies: list[str], picture: Picture[[Result, list[str]]]) -> Section:
    """Section with as many drawings of equal width as needed for at most `COLUMNS` policies in
    each.
    """
    drawings = ceil_div(len(policies), COLUMNS)
    width = ceil_div(len(policies), drawings)
    padded = policies + [""] * (drawings * width - len(policies))
    parts = [padded[start : start + width] for start in range(0, len(padded), width)]
    note = picture.note.format(seed=result["seeds"][0])
    named = [(part, f"{picture.title}: {', '.join(filter(None, part))}") for part in parts]
    with drawing.style():
        drawn = [drawing.inline(picture.draw(result, part), name) for part, name in named]
    return Section(picture.title, [note, *drawn])


def _tenants(result: Result) -> Iterator[Markup]:
    asked = result["experiment"]["tenants"]
    models = {t["name"]: Model.model_validate(result["models"][t["name"]]) for t in asked}
    yield document.table(TENANTS, (_tenant(result, t, models[t["name"]]) for t in asked), "text")
    told = {
        name: {"lengths": _drawn(result["lengths"].get(name)), "shape": model.source}
        for name, model in models.items()
    }
    yield facts((f"{name}, {key}", said) for name, of in told.items() for key, said in of.items())


def _tenant(result: Result, tenant: Mapping[str, Any], model: Model) -> list[str]:
    """Cells of a tenant's row, with the sizes of its model."""
    return [
        tenant["name"],
        f"{tenant['share']:g} %" if tenant["share"] else "by device",
        "the trace’s" if tenant["rate"] is None else f"{tenant['rate']:g}",
        str(tenant["priority"]),
        model.title,
        str(model.layers),
        f"{model.parameter_bytes / GIB:.1f} GiB",
        f"{result['shapes'][tenant['name']]['layer_bytes'] / MIB:.0f} MiB",
        f"{model.kv_token_bytes / 1024:.0f} KiB",
    ]


def _drawn(lengths: Mapping[str, Any] | None) -> str:
    if lengths is None:
        return "the trace's"
    return (
        f"{lengths['name']}: lognormal, prompts of mean {lengths['prompt_mean']:g} "
        f"(sigma {lengths['prompt_sigma']:g}), outputs of mean {lengths['output_mean']:g} "
        f"(sigma {lengths['output_sigma']:g})"
    )


def settings(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """All settings in `part` of the experiment by dotted name, which begins with `prefix`, except
    those in `OWN_TABLES`."""
    for key, value in part.items():
        if isinstance(value, Mapping) and value and key not in OWN_TABLES:
            yield from settings(value, f"{prefix}{key}.")
        elif key not in OWN_TABLES:
            yield f"{prefix}{key}", _said(value)


def hardware(of: Mapping[str, Any]) -> Section:
    """Section with name and unit, value and source of each figure of the hardware."""
    figures = {key: figure for key, figure in of.items() if key != "tiers"}
    for medium, tier in (of["tiers"] or {}).items():
        figures |= {f"{medium}_{key}": figure for key, figure in (tier or {}).items()}
    rows = (
        (_label(key), document.cell(f"{figure['value']:,g}", kind="number"), figure["source"])
        for key, figure in figures.items()
        if isinstance(figure, Mapping)
    )
    note = f"{of['title']}; every figure with where it comes from."
    return Section("The hardware", [note, document.table([], rows, "text")])


def _label(key: str) -> str:
    ending = next((e for e in UNITS if key.endswith(e)), "")
    return key.removesuffix(ending).replace("_", " ") + UNITS.get(ending, "")


def _said(value: Any) -> str:
    if value is None or value == {}:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
