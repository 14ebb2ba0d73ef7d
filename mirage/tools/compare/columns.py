"""Columns from a file of results: for each policy, the values of each figure in all runs that were
not interrupted. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage.errors import InputRefused
from mirage.tools.report.comparison import METRICS
from mirage.tools.report.repeats import grouped

SCHEMA_VERSION = 1


class CompareError(InputRefused):
    """A file of results cannot be read or compared; the message is one line."""


@dataclass(frozen=True)
class Column:
    """One policy's `values` of each figure, one for each run. Columns with equal `work` served the
    same requests.
    """

    name: str
    values: Mapping[str, list[float]]
    runs: int
    work: tuple[Any, ...]


def columns(file: str, content: Any) -> list[Column]:
    """Columns of a parsed ``report.json`` or ``result.json``. Raises `CompareError` if `content` is
    neither, is of another version, or has no whole run.
    """
    try:
        if not isinstance(content, dict) or content["schema_version"] != SCHEMA_VERSION:
            raise KeyError("schema_version")
        found = _simulated(content) if "results" in content else _replayed(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise CompareError(
            f"{file}: no report.json of `mirage replay` and no result.json of `mirage simulate` "
            f"of this version ({error} is missing or strange)"
        ) from None
    if not found:
        raise CompareError(f"{file}: holds no whole run: nothing to compare")
    return found


def named(columns: Sequence[Column], files: Iterable[str]) -> list[str]:
    """Name of each column: its policy. If any two columns have the same policy, every name also has
    its file, and a number where two names are still equal.
    """
    names = [column.name for column in columns]
    if len(set(names)) == len(names):
        return names
    labels = [f"{name}, {file}" for name, file in zip(names, files, strict=True)]
    seen: dict[str, int] = {}
    for place, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:
            labels[place] = f"{label} ({seen[label]})"
    return labels


def _replayed(report: Mapping[str, Any]) -> list[Column]:
    work = tuple(
        str(report.get(key))
        for key in ("requests", "trace", "window", "time_scale", "length_scale", "seed", "think_s")
    )
    whole = [run for run in report["runs"] if not run["interrupted"]]
    return [
        Column(policy, _values(runs), len(runs), work) for policy, runs in grouped(whole).items()
    ]


def _values(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Values of the figures that all runs have."""
    found = {metric.key: [run.get(metric.key) for run in runs] for metric in METRICS}
    return {
        key: [float(value) for value in values if value is not None]
        for key, values in found.items()
        if None not in values
    }


def _simulated(result: Mapping[str, Any]) -> list[Column]:
    work = (str(result["experiment"].get("workload")), str(result["seeds"]))
    found = []
    for policy in result["policies"]:
        figures = result["results"][policy]["figures"]
        values = {
            key: [float(value) for value in spread["values"]]
            for key, spread in figures.items()
            if spread and None not in spread["values"]
        }
        found.append(Column(policy, values, len(result["seeds"]), work))
    return found
