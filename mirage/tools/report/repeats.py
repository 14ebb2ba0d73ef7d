"""Merging of several runs of one workload under one policy into one column. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mirage.tools.report.intervals import mean

Figures = Mapping[str, Any]


def grouped(runs: Sequence[Figures]) -> dict[str, list[Figures]]:
    """The runs of each policy, in the order of the policies' first runs."""
    groups: dict[str, list[Figures]] = {}
    for run in runs:
        groups.setdefault(run["policy"], []).append(run)
    return groups


def merged(runs: Sequence[Figures]) -> dict[str, Any]:
    """One run that represents several: the mean of each figure, and its ``intervals``.

    A figure that some run lacks is None. ``intervals`` has half the width of the 95 % interval of
    each figure that has one.
    """
    if len(runs) == 1:
        return {**runs[0], "intervals": {}}
    figures: dict[str, Any] = {"policy": runs[0].get("policy"), "repeats": len(runs)}
    intervals: dict[str, float] = {}
    for key in runs[0]:
        values = [run.get(key) for run in runs]
        if not all(_is_number(value) for value in values):
            figures.setdefault(key, None)
            continue
        found = mean([float(value) for value in values if value is not None])
        figures[key] = found.value
        if found.half is not None:
            intervals[key] = found.half
    return {**figures, "intervals": intervals, "tenants": _tenants(runs)}


def _tenants(runs: Sequence[Figures]) -> dict[str, Any]:
    names = dict.fromkeys(name for run in runs for name in run.get("tenants") or {})
    return {name: merged([run["tenants"].get(name, {}) for run in runs]) for name in names}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
