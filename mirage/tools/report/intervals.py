"""Confidence intervals of means over repeated runs, and tests of two means against noise. Pure.

Student's and Welch's t at 95 %, since runs are few and their noise is unknown. Requests of one run
are no repeats of each other (they wait in the same queue), so one run has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Mean:
    """Mean of `runs` values; `half` is half the width of its interval, None for a single run."""

    value: float
    half: float | None
    runs: int


@dataclass(frozen=True)
class Difference:
    """`ratio` of two means, None if the second is 0; `more_than_noise` is None if one of the means
    comes from a single run.
    """

    ratio: float | None
    more_than_noise: bool | None

    @property
    def word(self) -> str:
        """The verdict as text."""
        if self.more_than_noise is None:
            return "one run: no interval"
        return "differs" if self.more_than_noise else "within noise"


def mean(values: Sequence[float]) -> Mean:
    """Mean and interval of at least one value."""
    middle = float(np.mean(values))
    if len(values) < 2:
        return Mean(middle, None, len(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Mean(middle, _quantile(len(values) - 1) * error, len(values))


def difference(values: Sequence[float], against: Sequence[float]) -> Difference:
    """Difference between the means of two sets of runs; the ratio is that of `values` to `against`.
    If all runs of each set have one value, the sets differ if these two values are not equal.
    """
    ratio = float(np.mean(values) / np.mean(against)) if np.mean(against) else None
    if len(values) < 2 or len(against) < 2:
        return Difference(ratio, None)
    if np.std(values) == 0 == np.std(against):
        return Difference(ratio, bool(values[0] != against[0]))
    found = stats.ttest_ind(values, against, equal_var=False)
    return Difference(ratio, bool(found.pvalue < 1 - CONFIDENCE))


def _quantile(freedom: int) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
