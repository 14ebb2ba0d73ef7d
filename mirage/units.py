"""Bytes by their names, and whole numbers rounded up."""

from __future__ import annotations

KIB, MIB, GIB = 2**10, 2**20, 2**30


def ceil_div(value: int, unit: int) -> int:
    """How many of `unit` it takes to hold `value`."""
    return -(-value // unit)


def align_up(value: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not under `value`."""
    return ceil_div(value, unit) * unit
