"""A comparison of policies as a table on the terminal, the best of each row marked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table

from mirage.tools.report.comparison import Cell, ComparisonRow


def table(title: str, policies: Sequence[str], rows: Iterable[ComparisonRow]) -> Table:
    """Table with a column for each policy."""
    made = Table("", *policies, title=escape(title))
    made.columns[0].no_wrap = True
    for column in made.columns[1:]:
        column.justify = "right"
    for row in rows:
        made.add_row(row.label, *map(_cell, row.cells))
    return made


def plain(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Table of text cells with column titles."""
    made = Table(*columns, title=escape(title))
    for row in rows:
        made.add_row(*map(escape, row))
    return made


def _cell(cell: Cell) -> str:
    ratio = f" [dim]{cell.ratio}[/]" if cell.ratio else ""
    half = f" [dim]{cell.half}[/]" if cell.half else ""
    figure = f"[bold green]{cell.text}[/]" if cell.best else cell.text
    return figure + half + ratio
