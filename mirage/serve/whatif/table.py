"""Prediction as text for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mirage.serve.whatif.figures import LatencySpread, TenantFigures
from mirage.serve.whatif.prediction import Prediction, TenantPrediction, errors

HEADINGS = (
    *("TENANT", "", "REQUESTS", "TTFT P50", "P99", "TPOT P50", "P99"),
    *("WHOLE P50", "P99", "TOKENS/S", "PREEMPTED"),
)
TEXTS = 2
"""Number of text columns, from the left; the others are numbers."""
FIGURES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "whole_ms": "whole"}


def shown(prediction: Prediction) -> str:
    """Table of each tenant's figures with the present configuration and after the change, then the
    inaccuracy of the simulation (simulated medians over measured ones), and notes."""
    rows = [HEADINGS, *_rows(prediction)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = [_title(prediction), *(_line(row, widths) for row in rows), *_error(prediction)]
    return "\n".join([*lines, *(f"note: {note}" for note in prediction.notes)])


def _title(prediction: Prediction) -> str:
    span = prediction.span_s
    told = f"{span:.0f} s" if span < 120 else f"{span / 60:.0f} min"
    return (
        f"simulated with the {prediction.requests} requests of the last {told}, as they are served "
        "now and would be after (ms):"
    )


def _rows(prediction: Prediction) -> Iterator[tuple[str, ...]]:
    for name, one in prediction.tenants.items():
        label = name
        for when, figures in _lines(one):
            yield (label, when, *_cells(figures))
            label = ""


def _lines(one: TenantPrediction) -> Iterator[tuple[str, TenantFigures | None]]:
    if one.measured is not None:
        yield "measured", one.measured
    if one.now is not None:
        yield "now", one.now
    yield ("after", one.after) if one.after is not None else ("removed", None)


def _cells(figures: TenantFigures | None) -> Iterator[str]:
    if figures is None:
        yield from [""] * (len(HEADINGS) - TEXTS)
        return
    yield str(figures.requests)
    for spread in (figures.ttft_ms, figures.tpot_ms, figures.whole_ms):
        yield from _two(spread)
    yield f"{figures.tokens_s:.1f}"
    yield "-" if figures.preemptions is None else str(figures.preemptions)


def _two(spread: LatencySpread | None) -> tuple[str, str]:
    return ("-", "-") if spread is None else (f"{spread.p50:,.1f}", f"{spread.p99:,.1f}")


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        cell.ljust(width) if column < TEXTS else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _error(prediction: Prediction) -> Iterator[str]:
    """Lines about the error: simulated medians over measured ones, for the present
    configuration.
    """
    found = errors(prediction)
    if not found:
        yield "error: unknown, nothing was measured of these requests"
        return
    words = (f"{name} {_ratio_words(ratios.items())}" for name, ratios in found.items())
    yield f"error: now is simulated at, of the measured median: {'; '.join(words)}"
    sources = {one.steps for one in prediction.tenants.values() if one.measured is not None}
    yield f"steps: by {' and '.join(sorted(sources))}"


def _ratio_words(ratios: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{FIGURES[figure]} {ratio:.2f} times" for figure, ratio in ratios)
