"""Row of the results: the measured subject, the figure, and its aim.

A new row of the GPU bench is a function of a module in this folder that returns a `Row` or several,
and a line with its time limit in `plan.py`.
"""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One result. `holds` is None if the row has no aim, or could not be measured."""

    name: str
    what: str
    value: str
    aim: str = ""
    holds: bool | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def skipped(name: str, why: str) -> Row:
    """Row in place of one that was not measured."""
    return Row(name, "", f"skipped: {why}")


class Skipped(Exception):
    """Error of a row that this machine cannot measure; the message says why."""


def said(error: Exception) -> str:
    """One line about an error; for an assertion without a message, the line of code
    that asserts.
    """
    words = " ".join(str(error).split())
    if isinstance(error, AssertionError):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}, line {frame.lineno}"
        return f"{words or frame.line} ({place})"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def at_most(value: float, bound: float) -> bool:
    return value <= bound


def alternating(variants: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each variant, which are measured alternately so that a drift
    affects all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, measure in variants.items():
            seconds[name].append(measure())
    return seconds


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def p99(values: Sequence[float]) -> float:
    """The smallest value that 99 % of the values do not exceed."""
    return sorted(values)[-(-99 * len(values) // 100) - 1]


def medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in seconds.items()}


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
