"""Rates and times as people read them."""

from __future__ import annotations


def rate(gb_s: float | None) -> str:
    """GB/s to three digits, with commas; ``never`` for None."""
    if gb_s is None:
        return "never"
    return f"{float(f'{gb_s:.3g}'):,.0f}" if gb_s >= 100 else f"{gb_s:.3g}"


def milliseconds(seconds: float) -> str:
    """To three digits."""
    return f"{seconds * 1e3:.3g}"
