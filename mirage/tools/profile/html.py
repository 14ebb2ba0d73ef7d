"""The page of a profile: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from mirage.tools.profile import pictures
from mirage.tools.profile.result import ACTS
from mirage.tools.report.document import Document, Section, cell, table, verdict

Result = Mapping[str, Any]

LAYERS = (
    "What it takes to load one from host memory (T_T), in milliseconds: median, and quartiles in "
    "brackets."
)
PAGES = (
    "Microseconds for so many pages of {:g} KiB, through the driver: median, and quartiles in "
    "brackets."
)
SERVING = Markup(
    "<p>The engines alone against all of them behind <code>mirage serve</code>, on {} cores.</p>"
)
HARDWARE = Markup(
    "<p>What <code>mirage simulate</code> and <code>mirage explain</code> read, with the source of "
    "every figure.</p>"
)
QUIET = (
    "Seconds that each part took, and how many other processes wanted a core meanwhile, on average."
)


def render(result: Result) -> str:
    """The page of a result; the same text for the same result."""
    drawn = (pictures.link, pictures.decode, pictures.prefill, pictures.fit)
    return Document(
        f"MIRAGE profile: {result['title']}",
        result["title"],
        [_how(result), *_doubts(result)],
        [*(each.section(result) for each in drawn), *_tables(result)],
    ).render()


def _how(result: Result) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    form = "Measured by {program} on {machine} with the models of {config}, {date}, "
    return f"{form.format_map(result['provenance'])}{result['effort']}; {versions}."


def _doubts(result: Result) -> list[Markup]:
    doubts = [verdict(doubt, "bad") for doubt in result["doubts"]]
    return doubts or [verdict("The machine was quiet, and repeats agree")]


def _tables(result: Result) -> Iterator[Section]:
    head = ("tenant", "a layer", "T_T, ms", "mean error of the fitted steps")
    yield Section("Layers", [LAYERS, table(head, _layers(result))])
    note = PAGES.format(result["page_bytes"] / 1024)
    yield Section("Pages", [note, table(["pages", *ACTS], _pages(result))])
    serving = table([], _serving(result))
    yield Section("What serving adds", [SERVING.format(result["cores"]), serving])
    yield Section("The hardware file", [HARDWARE, table([], _hardware(result), "text")])
    parts = table(["part", "seconds", "other processes"], _parts(result))
    yield Section("How quiet the machine was", [QUIET, parts])


def _layers(result: Result) -> Iterator[tuple[str, str, str, str]]:
    for name, tenant in result["tenants"].items():
        load = tenant["load_s"]
        size = f"{tenant['layer_bytes'] / 2**20:.2f} MiB" if load else "none can move"
        taken = _spread(load, 1e3) if load else ""
        yield name, size, taken, f"{100 * tenant['mean_error']:.1f} %"


def _pages(result: Result) -> Iterator[list[str]]:
    """Rows of a table: number of pages, and microseconds of each operation."""
    for row in result["pages"]:
        yield [str(row["pages"]), *(_spread(row[f"{act}_s"], 1e6) for act in ACTS)]


def _serving(result: Result) -> Iterator[tuple[str, str]]:
    found = result["serving"]
    for where, (step, token) in (
        ("in the engine", found["engine"]),
        ("in front of the engine", found["front"]),
    ):
        yield f"to each step, {where}", f"{step * 1e3:.3g} ms"
        yield f"to each token of it, {where}", f"{token * 1e6:.3g} µs"
    alone = "a request that is alone, until the engine has it"
    yield alone, f"{found['latency_s'] * 1e3:.3g} ms"
    yield "a request of a burst, engines busy", f"{found['request_s'] * 1e3:.3g} ms"
    reading = ", ".join(f"{value * 1e3:.3g}" for value in found["reading"])
    yield "processor time of one, engines idle: client, router, API server, engine", f"{reading} ms"
    inflation = ", ".join(f"{value:.2f}" for value in found["inflation"])
    yield "a step beside 0, 1, … other engines, of one alone", inflation
    yield "a control message", f"{_spread(result['message_s'], 1e3)} ms"
    yield "acting on an allotment", f"{_spread(result['apply_s'], 1e3)} ms"


def _hardware(result: Result) -> Iterator[tuple[str, str, str]]:
    for name, figure in result["hardware"].items():
        yield name, cell(f"{figure['value']:.4g}", kind="number"), figure["source"]


def _parts(result: Result) -> Iterator[tuple[str, str, str]]:
    for name, others in result["others"].items():
        yield name, f"{result['seconds'][name]:.0f}", f"{others:.2f}"


def _spread(values: Mapping[str, float], factor: float) -> str:
    """Median, with the quartiles in brackets."""
    middle, low, high = (f"{values[key] * factor:.3g}" for key in ("median", "low", "high"))
    return f"{middle} ({low} to {high})"
