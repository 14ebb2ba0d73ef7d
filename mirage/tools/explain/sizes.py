"""Rates and times as text."""

from __future__ import annotations


def rate(gb_s: float | None) -> str:
    """Number of GB/s with three significant digits, and commas in large numbers, without the unit;
    ``never`` for None.
    """
    if gb_s is None:
        return "never"
    return f"{float(f'{gb_s:.3g}'):,.0f}" if gb_s >= 100 else f"{gb_s:.3g}"


def milliseconds(seconds: float) -> str:
    """Number of milliseconds with three significant digits, without the unit."""
    return f"{seconds * 1e3:.3g}"
