"""The report as a table on the terminal: policies side by side, the best of a row marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mirage.report import comparison


def show(built: dict[str, Any], output: Path, console: Console) -> None:
    """Print a report (see `report.build`) and where in `output` it lies."""
    policies = [run["policy"] for run in built["runs"]]
    table = Table("", *policies, title=escape(f"{built['requests']} requests of {built['trace']}"))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in comparison.rows(built["runs"], policies):
        table.add_row(row.label, *map(_cell, row.cells))
    console.print(table)
    console.print(_verdict(built), highlight=False)
    console.out(f"Report: {output / 'report.html'}, {output / 'report.json'}", highlight=False)


def _cell(cell: comparison.Cell) -> str:
    ratio = f" [dim]{cell.ratio}[/]" if cell.ratio else ""
    return f"[bold green]{cell.text}[/]{ratio}" if cell.best else cell.text + ratio


def _verdict(built: dict[str, Any]) -> str:
    failed = sum(run["failed"] for run in built["runs"])
    if built["outputs_identical"]:
        return "Every request's output is the same under every policy."
    if built["outputs_identical"] is None:
        return f"Outputs not compared (fewer than two whole runs); {failed} requests failed."
    different = built["outputs_different"]
    return f"[red]{different} outputs differ between policies; {failed} requests failed.[/]"
