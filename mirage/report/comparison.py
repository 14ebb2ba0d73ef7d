"""The table that people read first: figures as rows, policies as columns, the best marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mirage.units import MIB

BASELINE = "static"
"""Ratios are against this policy, or the first run if it was not replayed."""


@dataclass(frozen=True)
class Figure:
    """A key of a run in the report, what to call it, and which way is better."""

    key: str
    label: str
    better: Literal["low", "high", None] = None
    divide: float = 1.0
    digits: int = 0


FIGURES = (
    Figure("completed", "requests completed", "high"),
    Figure("failed", "requests failed", "low"),
    Figure("preemptions", "preemptions", "low"),
    Figure("duration", "duration, s", digits=1),
    Figure("request_throughput", "requests per s", "high", digits=2),
    Figure("output_throughput", "output tokens per s", "high", digits=1),
    *(
        Figure(f"{statistic}_{key}", f"{name} {label}, ms", "low", digits=1)
        for key, name in (
            ("ttft_ms", "TTFT"),
            ("tpot_ms", "TPOT"),
            ("itl_ms", "ITL"),
            ("e2el_ms", "E2EL"),
        )
        for statistic, label in (("mean", "mean"), ("p50", "P50"), ("p99", "P99"))
    ),
    Figure("kv_blocks_granted_max", "KV blocks granted, most"),
    Figure("layers_remapped_max", "layers remapped, most"),
    Figure("bytes_streamed", "parameters streamed, MiB", divide=MIB, digits=1),
)


@dataclass(frozen=True)
class Cell:
    """One figure of one policy; `ratio` is against the baseline, None where it says nothing."""

    text: str
    ratio: str | None
    best: bool


@dataclass(frozen=True)
class Row:
    label: str
    cells: list[Cell]


def rows(
    figures: Sequence[Mapping[str, Any]],
    policies: Sequence[str],
    wanted: Sequence[Figure] = FIGURES,
) -> list[Row]:
    """One row per wanted figure that some policy has.

    `figures` are the policies' runs, or one tenant's parts of them.
    """
    base = policies.index(BASELINE) if BASELINE in policies else 0
    table = []
    for figure in wanted:
        values = [part.get(figure.key) for part in figures]
        if any(value is not None for value in values):
            cells = [_cell(figure, values, column, base) for column in range(len(values))]
            table.append(Row(figure.label, cells))
    return table


def _cell(figure: Figure, values: Sequence[float | None], column: int, base: int) -> Cell:
    value, against = values[column], values[base]
    if value is None:
        return Cell("–", None, False)
    ratio = None
    if figure.better and value and against and value != against:
        ratio = f"{value / against:.2f}×"
    return Cell(f"{value / figure.divide:,.{figure.digits}f}", ratio, _best(figure, values, value))


def _best(figure: Figure, values: Sequence[float | None], value: float) -> bool:
    """Nobody is best where all are equal."""
    known = [other for other in values if other is not None]
    if figure.better is None or len(set(known)) < 2:
        return False
    return value == (min(known) if figure.better == "low" else max(known))
