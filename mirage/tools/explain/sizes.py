"""Rates and times as text."""

from __future__ import annotations


def rate(gb_s: float | None) -> str:
    """GB/s with three digits, and commas in large numbers; ``never`` for None."""
    if gb_s is None:
        return "never"
    return f"{float(f'{gb_s:.3g}'):,.0f}" if gb_s >= 100 else f"{gb_s:.3g}"


def milliseconds(seconds: float) -> str:
    """Milliseconds with three digits."""
    return f"{seconds * 1e3:.3g}"
