"""The report as a table on the terminal: policies as columns, the best of each row marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from mirage.samples import PLACES
from mirage.tools.replay.asking import consequence
from mirage.tools.report import comparison
from mirage.tools.report.enough import too_few
from mirage.tools.report.terminal import table


def show(built: dict[str, Any], output: Path, console: Console) -> None:
    """Print a report (see `report.build`), and the paths of its files in `output`."""
    policies = [column["policy"] for column in built["policies"]]
    title = f"{built['requests']} requests of {built['trace']}"
    console.print(table(title, policies, comparison.rows(built["policies"], policies)))
    for line in remarks(built):
        console.print(line, highlight=False)
    console.print(_verdict(built), highlight=False)
    console.out(f"Report: {output / 'report.html'}, {output / 'report.json'}", highlight=False)


def remarks(built: dict[str, Any]) -> list[str]:
    """Remarks that a reader needs in order to judge the figures."""
    lines = [f"{few}."] if (few := too_few(_completed(built))) else []
    if (load := built["load"]) is not None:
        lines.append(
            f"Requests arrive at {load:.0%} of the {built['capacity_rps']:.3g} a second that this "
            f"machine computes with memory to spare: gaps x {built['time_scale']:.3g}."
        )
    if (repeats := built["repeats"]) > 1:
        lines.append(f"Means of {repeats} runs each, ± half the interval at 95 %.")
    lines += _found_again(built)
    late = [run for run in built["runs"] if run["lagged"]]
    for policy, run in {run["policy"]: run for run in late}.items():
        lines.append(
            f"{policy}: the client lagged, {run['max_lag_ms']:.0f} ms at most: requests left late, "
            "and latencies are those of a lighter load"
        )
    refusing = {run["policy"]: run["refused_fields"] for run in built["runs"]}
    lines += [f"{policy}: {consequence(names)}" for policy, names in refusing.items() if names]
    return lines


def _completed(built: dict[str, Any]) -> int:
    """Completed requests of the run with the fewest, among complete runs if there are any."""
    whole = [run for run in built["runs"] if not run["interrupted"]]
    return min((run["completed"] for run in whole or built["runs"]), default=0)


def _found_again(built: dict[str, Any]) -> list[str]:
    """Remarks on prompt tokens that repeat earlier prompts, and on the part that was found in
    caches.
    """
    repeated = built["repeated_tokens"]
    columns = [column for column in built["policies"] if column["prefill_tokens"] is not None]
    found = {column["policy"]: _found(column) for column in columns}
    if not repeated or not any(found.values()):
        return []
    told = ", ".join(f"{policy} {tokens / repeated:.0%}" for policy, tokens in found.items())
    return [
        f"{repeated:,} tokens of prompts began earlier prompts as well, in whole blocks. "
        f"Found again instead of computed: {told}."
    ]


def _found(column: dict[str, Any]) -> float:
    return sum(float(column[f"tokens_from_{place}"]) for place in PLACES)


def _everywhere(runs: list[dict[str, Any]]) -> str:
    alone = len({run["policy"] for run in runs}) == 1
    return "in every repeat" if alone else "under every policy"


def _verdict(built: dict[str, Any]) -> str:
    failed = sum(run["failed"] for run in built["runs"])
    if built["outputs_identical"]:
        return f"Every request's output is the same {_everywhere(built['runs'])}."
    if built["outputs_identical"] is None:
        return f"Outputs not compared (fewer than two whole runs); {failed} requests failed."
    different = built["outputs_different"]
    return f"[red]{different} outputs differ between policies; {failed} requests failed.[/]"
