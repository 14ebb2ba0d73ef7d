"""The answer on the terminal: contenders on held-back windows, then the sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from rich.console import Console
from rich.table import Table

from mirage.tools.report.enough import too_few
from mirage.tools.tune.answer import Recommendation
from mirage.tools.tune.goals import unit
from mirage.tools.tune.question import Question

WIDTH = 110
COLUMNS = {
    "goodput/s": ("goodput", 3),
    "tokens/s": ("throughput", 1),
    "TTFT P99 ms": ("ttft_p99", 0),
    "TPOT P50 ms": ("tpot_p50", 1),
    "ITL P99 ms": ("itl_p99", 0),
}


def show(
    question: Question,
    answer: Recommendation,
    said: Sequence[str],
    console: Console,
    live: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Print machine and trace, the tables, with one of `live` measurements if there are any, and
    the sentences."""
    console.width = max(console.width, WIDTH)
    for line in about(question, answer):
        console.out(line, highlight=False)
    console.print(_table(answer))
    if live:
        console.print(_live(live))
    for sentence in said:
        console.out(sentence, highlight=False)


def about(question: Question, answer: Recommendation) -> list[str]:
    """Lines on the machine, the trace, the objective and the load."""
    on, goal, cut = question.machine, answer.goal, question.cut
    why = f" ({on.name}: {on.why})" if on.why else f" ({on.name})"
    scale = question.config.replay.time_scale * answer.slower
    requests = len(cut.searched[0].requests)
    lines = [
        f"{on.hardware.title}{why}, link {on.hardware.link_gb_s.value:g} GB/s",
        f"{question.trace_name}: searched on {len(cut.searched)} windows of {requests} requests, "
        f"judged on {len(cut.held_back)} others; gaps times {scale:g}, lengths times "
        f"{question.config.replay.length_scale:g}",
        f"objective {goal.objective}, in {unit(goal.objective)}; limits {goal.slo}"
        + (" (derived: multiples of what requests take that are nearly alone)")
        * answer.slo_is_derived,
    ]
    if (few := too_few(cut.judged)) is not None:
        lines.append(few)
    if not question.load_is_given:
        lines.append(
            "load: just above what the configuration bears within the limits"
            + ", since neither a trace nor replay.time_scale is given"
            * (not question.options.find_load)
        )
    if answer.pressing:
        each = [f"{name} from {question.rate(s):.3g}/s" for name, s in answer.pressing.items()]
        lines.append(f"too many requests for the limits: {', '.join(each)}")
    if answer.load:
        lines += [answer.load.parts(), answer.load.said()]
    return lines


def _table(answer: Recommendation) -> Table:
    made = Table("", f"searched: {answer.goal.objective}", *COLUMNS, "preempted", box=None)
    for column in made.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for name, each in answer.judged.items():
        cells = [number(each.whole[key], digits) for key, digits in COLUMNS.values()]
        preempted = sum(outcome.preemptions for outcome in each.outcomes)
        style = "bold" if name == "tuned" else ""
        made.add_row(name, number(answer.searched[name], 3), *cells, f"{preempted:,}", style=style)
    return made


def _live(live: Mapping[str, Mapping[str, float]]) -> Table:
    """Table of the measurements on real engines: medians of the repeats."""
    made = Table("on real engines", *COLUMNS, box=None)
    for column in made.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for name, figures in live.items():
        made.add_row(name, *(number(figures[key], digits) for key, digits in COLUMNS.values()))
    return made


def number(value: float, digits: int) -> str:
    """A number with `digits` decimals; ``–`` if it is infinite because no request completed."""
    return f"{value:,.{digits}f}" if isfinite(value) else "–"
