"""``tune.html``: one file that needs nothing else, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from mirage.config import Config
from mirage.tools.report.page import Picture, picture, template
from mirage.tools.tune import pictures
from mirage.tools.tune.answer import DEFAULT, Answer
from mirage.tools.tune.curves import curve
from mirage.tools.tune.question import Question
from mirage.tools.tune.summary import readable
from mirage.tools.tune.table import COLUMNS, about, number

TEMPLATE = "tune.html.j2"
LATENCY = "ttft_p99"


class Row(NamedTuple):
    """One contender's figures, and how they compare with the file as it is."""

    name: str
    cells: list[tuple[str, str, bool]]
    """Text, ratio, and whether it is the best of its column."""


def render(question: Question, answer: Answer, report: dict[str, Any], config: Config) -> str:
    """The page; the same for the same answer."""
    return template(Path(__file__).with_name(TEMPLATE)).render(
        report=report,
        about=about(question, answer),
        changed=readable(question.config, config),
        columns=list(COLUMNS),
        rows=rows(report["held_back"]),
        live=rows(report["live"]["measured"]) if report["live"] else [],
        pictures=list(_pictures(question, report)),
    )


def rows(held: dict[str, Any]) -> list[Row]:
    """Contenders by name, simulated or measured, beside the first or the configuration as it is."""
    as_is = held[DEFAULT if DEFAULT in held else next(iter(held))]
    made = []
    for name, figures in held.items():
        cells = []
        for key, digits in COLUMNS.values():
            value, default = figures[key], as_is[key]
            best = max if key in ("goodput", "throughput") else min
            ratio = f"{value / default:.2f}×" if default and isfinite(value / default) else ""
            is_best = value == best(each[key] for each in held.values())
            cells.append((number(value, digits), ratio, is_best))
        made.append(Row(name, cells))
    return made


def _pictures(question: Question, report: dict[str, Any]) -> Iterator[Picture]:
    curves = [curve(s, question.machine.hardware) for s in question.subjects.subjects]
    drawn: tuple[tuple[str, str, Callable[[], Figure]], ...] = (
        (
            "What hides behind compute",
            "Blue: how long one decode step computes, by the requests in its batch. Orange: how "
            "long it takes to load that part of the model's layers over the link. Where blue is "
            "above an orange line, so many layers can be streamed and nobody waits. Batches go as "
            "far as the model's limits and the device allow.",
            lambda: pictures.crossing(curves),
        ),
        (
            "How much to remap",
            "The same percentage as the most that every model may give, all else as it is, on "
            "windows that the search has not seen. Goodput and tokens: more is better; latencies: "
            "less. A flat line says that what models may give is not what bounds them.",
            lambda: pictures.percentages(report),
        ),
        (
            "Which setting mattered",
            "How much of the difference between trials each setting explains (PED-ANOVA). "
            "A setting that matters little is left as it was.",
            lambda: pictures.knobs(report),
        ),
        (
            "Throughput against latency",
            "Every trial of the search that saw all windows. Further left and further up is "
            "better; on the green line one is had only at the price of the other.",
            lambda: pictures.front(report, LATENCY),
        ),
        (
            "How sure is it?",
            "Each dot deals the unseen requests to the models in another way; the bar is all of "
            "them together. Where dots of two rows overlap widely, their difference is chance.",
            lambda: pictures.spread(report),
        ),
    )
    for number_, (title, note, draw) in enumerate(drawn):
        if number_ == 2 and not report["importances"]:
            continue
        yield picture(title, note, draw)
