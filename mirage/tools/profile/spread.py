"""Median and quartiles of repeated measurements. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Median and quartiles in the unit of the values, and the number of values."""

    median: float
    low: float
    high: float
    count: int

    @property
    def width(self) -> float:
        """Distance between the quartiles, as a part of the median; 0 if the median is 0."""
        return (self.high - self.low) / self.median if self.median else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Median, quartiles and number of the values, of which there must be at least one. Raises
    `ValueError` without values.
    """
    if not values:
        raise ValueError("no values: measure at least once")
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high, len(values))
