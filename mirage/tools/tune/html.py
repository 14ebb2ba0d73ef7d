"""``tune.html``: one self-contained file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from markupsafe import Markup

from mirage.config import Config
from mirage.tools.report.document import Document, Section, cell, facts, points, table
from mirage.tools.tune import pictures
from mirage.tools.tune.answer import DEFAULT, Recommendation
from mirage.tools.tune.curves import curve
from mirage.tools.tune.question import Question
from mirage.tools.tune.summary import readable
from mirage.tools.tune.table import COLUMNS, about, number

LATENCY = "ttft_p99"
CONTENDERS = Markup(
    "<p>On windows of the trace that the search has not seen. <b>default</b> is the configuration "
    "as it is, <b>fixed</b> the same with one percentage for all models, <b>static</b> without "
    "moving memory, <b>pooled</b> with KV memory moving alone, <b>tuned at 0 %</b> the tuned one "
    "without giving layers. The small figure is the ratio to default; the best of a column is "
    "marked. These figures are computed, not measured.</p>"
)
ON_ENGINES = Markup(
    "<p>The best of the search, the configuration as it is and the best fixed percentage, replayed "
    "in turns on this machine: {requests} requests of a window that the search has not seen. Each "
    "figure is the median of its repeats, the small one the ratio to default. The best by "
    "{objective} is <b>{winner}</b>, and tuned.yaml is that.</p>"
)

Report = Mapping[str, Any]


def render(question: Question, answer: Recommendation, report: Report, config: Config) -> str:
    """The page; the same text for the same answer."""
    changed = readable(question.config, config)
    return Document(
        f"MIRAGE, tuned: {report['config']}",
        f"{report['config']}, tuned",
        about(question, answer),
        [
            Section(
                "The answer",
                [*report["sentences"], *([points(changed)] if changed else [])],
                "answer",
            ),
            Section("Tuned beside default", [CONTENDERS, _contenders(report["held_back"])]),
            *([_live(report)] if report["live"] else []),
            *_pictures(question, report),
            Section("To repeat it", [_command(report), facts(_repeated(report))]),
        ],
    ).render()


def _contenders(held: Report) -> Markup:
    rows = ([name, *cells] for name, cells in figures(held).items())
    return table(["", *COLUMNS], rows, chosen="tuned")


def _live(report: Report) -> Section:
    live, objective = report["live"], report["objective"]
    rows = []
    for name, cells in figures(live["measured"]).items():
        repeats = live["measured"][name]["repeats"]
        rows.append([name, *cells, ", ".join(f"{one[objective]:.3g}" for one in repeats)])
    head = ["", *COLUMNS, f"{objective} of each repeat"]
    said = ON_ENGINES.format(objective=objective, **live)
    return Section("On the real engines", [said, table(head, rows, chosen=live["winner"])])


def figures(held: Report) -> dict[str, list[Markup]]:
    """Cells for each contender in `held`, simulated or measured, with ratios to the unchanged
    configuration, or to the first contender if `held` does not have the unchanged one.
    """
    as_is = held[DEFAULT if DEFAULT in held else next(iter(held))]
    made: dict[str, list[Markup]] = {name: [] for name in held}
    for key, digits in COLUMNS.values():
        best = (max if key in ("goodput", "throughput") else min)(f[key] for f in held.values())
        for name, found in held.items():
            value, default = found[key], as_is[key]
            ratio = f"{value / default:.2f}×" if default and isfinite(value / default) else ""
            kind = "best" if value == best else ""
            made[name].append(cell(number(value, digits), ratio, kind=kind))
    return made


def _pictures(question: Question, report: Report) -> Iterator[Section]:
    curves = [curve(s, question.machine.hardware) for s in question.subjects.subjects]
    yield pictures.crossing.section(curves)
    yield pictures.percentages.section(report)
    if report["importances"]:
        yield pictures.knobs.section(report)
    yield pictures.front.section(report, LATENCY)
    yield pictures.spread.section(report)


def _command(report: Report) -> Markup:
    return Markup("<pre>{}</pre>").format(" ".join(report["command"]))


def _repeated(report: Report) -> Iterator[tuple[str, str]]:
    pruned = sum(trial["state"] == "pruned" for trial in report["trials"])
    yield "versions", ", ".join(map(" ".join, report["versions"].items()))
    yield "trials", f"{len(report['trials'])}, of which {pruned} were given up early"
    yield "objective", report["objective"]
    yield "all figures", "tune.json beside this page"
