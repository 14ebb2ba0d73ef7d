"""The table of a comparison: a mean with its interval in each cell, and a verdict on the
difference.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage.tools.compare.columns import Column
from mirage.tools.report.comparison import METRICS, Cell, ComparisonRow, Metric
from mirage.tools.report.intervals import Difference, difference, mean


def rows(columns: Sequence[Column]) -> list[ComparisonRow]:
    """One row for each figure that some column has; some figures only if a value is not 0. Ratios
    are against the first column, if it has the figure.
    """
    return [
        ComparisonRow(metric.label, [_cell(metric, columns, column) for column in columns])
        for metric in METRICS
        if any(_has(metric, column) for column in columns)
    ]


def differences(columns: Sequence[Column]) -> list[tuple[Metric, int, Difference]]:
    """Each figure, column number, and difference from the first column; only figures that both
    have, and of which high or low is better.
    """
    first, *others = columns
    return [
        (metric, place, difference(column.values[metric.key], first.values[metric.key]))
        for metric in METRICS
        for place, column in enumerate(others, 1)
        if metric.better and metric.key in first.values and metric.key in column.values
    ]


def _has(metric: Metric, column: Column) -> bool:
    values = column.values.get(metric.key)
    return values is not None and (any(values) or not metric.if_any)


def _cell(metric: Metric, columns: Sequence[Column], column: Column) -> Cell:
    values = column.values.get(metric.key)
    if values is None:
        return Cell("–", None, best=False)
    found = mean(values)
    scale, digits = metric.divide, max(metric.digits, 1 if found.half is not None else 0)
    half = None if found.half is None else f"± {found.half / scale:,.{digits}f}"
    against = columns[0].values.get(metric.key)
    told = None
    if metric.better and against is not None and column is not columns[0]:
        told = _told(difference(values, against))
    return Cell(f"{found.value / scale:,.{digits}f}", told, _wins(metric, columns, column), half)


def _told(found: Difference) -> str | None:
    """Ratio and verdict, as ``0.31× differs``; the ratio alone for single runs; None if there is
    neither.
    """
    ratio = "" if found.ratio is None else f"{found.ratio:.2f}×"
    word = "" if found.more_than_noise is None else found.word
    return " ".join(part for part in (ratio, word) if part) or None


def _wins(metric: Metric, columns: Sequence[Column], column: Column) -> bool:
    """True if the column's mean is best and differs from each of the others by more than noise;
    False for single runs.
    """
    others = [other for other in columns if other is not column and metric.key in other.values]
    if metric.better is None or not others:
        return False
    mine = column.values[metric.key]
    for other in others:
        found = difference(mine, other.values[metric.key])
        if not found.more_than_noise or found.ratio is None:
            return False
        if (found.ratio < 1) != (metric.better == "low"):
            return False
    return True
