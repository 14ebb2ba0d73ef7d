"""Units of bytes, sizes as text, and integer division that rounds up."""

from __future__ import annotations

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40


def size(nbytes: float) -> str:
    """`nbytes` as text, the same in all output: ``"3.0 MiB"``, ``"23.4 GiB"``, ``"1.5 TiB"``."""
    unit, name = next(one for one in _NAMES if nbytes >= one[0] or one[0] == MIB)
    return f"{nbytes / unit:,.1f} {name}"


def sizes(one: int, other: int) -> tuple[str, str]:
    """Two sizes as text for a comparison: both in bytes if `size` would show them alike."""
    words = size(one), size(other)
    return words if words[0] != words[1] else (f"{one:,} bytes", f"{other:,} bytes")


_NAMES = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"))


def ceil_div(value: int, unit: int) -> int:
    """Number of units of size `unit` needed to hold `value`: the quotient, rounded up."""
    return -(-value // unit)


def align_up(value: int, unit: int) -> int:
    """The smallest multiple of `unit` that is at least `value`."""
    return ceil_div(value, unit) * unit
