"""The claims as a table on the terminal and as a page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.claims.judging import Span

COLOURS = {
    "reproduced": "green",
    "direction": "yellow",
    "not reproduced": "red",
    "inconsistent": "magenta",
}
NAMES = {
    "p99_ttft_ms": "TTFT P99",
    "p99_tpot_ms": "TPOT P99",
    "p99_itl_ms": "ITL P99",
    "p50_itl_ms": "ITL P50",
    "output_throughput": "throughput",
    "bytes_restored": "restored bytes",
}
BANDS = {"inside": "green", "open": "yellow", "outside": "red"}

INTRODUCTION = """# The paper's claims, and ours

What MIRAGE (arXiv 2507.11507) claims, what the simulator measures for it, and the bands that
its results should fall into. This page is written by `make claims`, which is

    .venv/bin/python -m benchmarks.claims --seeds {seeds}{trace}

and the same figures are in `out/claims/claims.json`. Arrivals: {arrivals}.
Lengths, loads, turns and numbers of requests are pinned in `benchmarks/experiments/claims.yaml`
and `configs/lengths.yaml`, the machine in `configs/hardware/gh200.yaml`, each figure with its
source. Changes are in per cent of the policy compared with (`static` where none is named), seed
by seed, then averaged; a range runs over the loads simulated. Where the paper compares with a
static server, `pooled` is shown too, which lends idle KV and moves no layer.

Beside MIRAGE more documents are checked. T are TierKV's claims, of
`benchmarks/experiments/tierkv.yaml`: 26 of 208 requests decode at a time, in turns, and a copy
over a link waits for the copies before it. H are Harvest's, A those of two articles on
offloading: link and roofline of `configs/hardware/h100.yaml`. Where a document contradicts
itself, the reasons below say where. Of these claims orders and invariants are judged as bands
(B20 to B23), absolute figures are not. B24 to B26 are what giving cold experts adds to giving
layers (`configs/experiments/mixture.yaml`), which no document has.

*reproduced*: the paper's figure lies in the range, or within 10 points of it.
*direction*: the sign is right, the size is not; or one of several figures goes the other way.
*±*: half of the 95 % interval (Student's t) of a mean over the seeds, the widest of a range.
*on seeds*: seeds whose own figures give that verdict, or a better one; arithmetic has none.
A band has the mean over the seeds with its 95 % interval. *inside*: all of the
interval is in the band; *open*: a part of it; *outside*: nothing. *holds on*: seeds whose own
figure is in the band, of all seeds. Most bands and rules were chosen in sight of seeds 0 to 4,
none in sight of these; two rules were compared on 20 to 23 (gain-history.md), and the cases of B22
were chosen in sight of these (below).
*inconsistent*: the paper's own inputs do not bear it. "TBT" may be the pooled gap between tokens
(ITL) or each request's mean (TPOT); both are shown.
"""


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the paper's figure, ours and the verdict of each row."""
    table = Table("", "claim", "paper or band", "ours", "verdict", title="Claims and bands")
    for row in rows:
        verdict = f"[{COLOURS[row['verdict']]}]{row['verdict']}[/]"
        if (judged := row["judged"]) is not None:
            verdict = f"[{BANDS[judged]}]{judged}[/]"
        if row["holds"] is not None:
            verdict += f", on {_holds(row)}"
        cells = (row["id"], row["claim"], row["paper"], ours(row))
        table.add_row(*map(escape, cells), verdict)
    console.print(table)
    console.print(counted(rows), highlight=False)


def counted(rows: Sequence[dict[str, Any]]) -> str:
    """Sentence on the number of bands by verdict on their intervals."""
    bands = [row["judged"] for row in rows if row["judged"] is not None]
    return (
        f"Of {len(bands)} bands {bands.count('inside')} hold, {bands.count('open')} are open and "
        f"{bands.count('outside')} do not."
    )


def markdown(rows: Sequence[dict[str, Any]], seeds: Sequence[int], trace: Path | None) -> str:
    """Text of the whole page."""
    arrivals = (
        "drawn, in spells and volleys like the published code trace's (`traces/generate.py`)"
        if trace is None
        else f"windows of `{trace.name}`, stretched to the rate with their burstiness kept"
    )
    parts = [
        INTRODUCTION.format(
            seeds=_seeds(seeds),
            trace="" if trace is None else f" --trace {trace.name}",
            arrivals=arrivals,
        ),
        "## Claims\n",
        _table([row for row in rows if row["judged"] is None]),
        "## Bands\n",
        f"{counted(rows)}\n",
        _bands([row for row in rows if row["judged"] is not None]),
        *(_more(row) for row in rows if row["table"]),
        "## Where ours differs, and why\n",
        *(f"- **{row['id']}** {row['why'].strip()}\n" for row in rows if row["why"]),
    ]
    return "\n".join(parts).replace("\n\n-", "\n-")


def ours(row: dict[str, Any]) -> str:
    """Measured figures of a row, as text."""
    measured = row["measured"]
    if isinstance(measured, dict):
        shown = [(k, v) for k, v in measured.items() if not k.endswith("verdict")]
        return "; ".join(f"{_name(key)} {_span(value)}" for key, value in shown)
    if not isinstance(measured, float):
        return str(measured)
    if row["interval"] is None:
        return _number(measured)
    low, high = row["interval"]
    return f"{_number(measured)} ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _holds(row: dict[str, Any]) -> str:
    """Number of seeds on which a row holds, of all; empty for a claim by arithmetic."""
    if row["holds"] is None:
        return ""
    seeds, of = row["holds"]
    return f"{seeds} of {of}"


def _name(key: str) -> str:
    figure, against, other = key.partition(" against ")
    return NAMES.get(figure, figure) + against + other


def _span(span: Span) -> str:
    low, high, half = span
    shown = f"{low:+.1f} %" if low == high else f"{low:+.1f} … {high:+.1f} %"
    return shown if half is None else f"{shown} (± {half:.1f})"


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| | | paper | ours | verdict | on seeds |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = (row["id"], row["claim"], row["paper"], ours(row), row["verdict"], _holds(row))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _bands(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| | | band | ours | interval | holds on seeds |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = (row["id"], row["claim"], row["paper"], ours(row), row["judged"], _holds(row))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _more(row: dict[str, Any]) -> str:
    """Section with the further table of one row."""
    head, *rest = row["table"]
    lines = [f"## {row['id']}: {row['claim']}", "", "| " + " | ".join(head) + " |"]
    lines.append("|" + "---:|" * len(head))
    lines += ["| " + " | ".join(cells) + " |" for cells in rest]
    return "\n".join(lines) + "\n"


def _seeds(seeds: Sequence[int]) -> str:
    if list(seeds) == list(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 1:
        return f"{seeds[0]}-{seeds[-1]}"
    return ",".join(map(str, seeds))
