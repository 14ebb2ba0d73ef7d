"""Evidence for the format of timed rows, from the hashes and times at a file's beginning. Pure.

Formats with the same fields differ in the unit of times and in the tokens of a hash. A file does
not state either; its rows together usually show both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from mirage.units import ceil_div
from mirage.workload.formats.head import Head
from mirage.workload.formats.telling import shown

TIME, ASKED, ANSWERED, HASHES = "timestamp", "input_length", "output_length", "hash_ids"
FIELDS = {TIME, ASKED, ANSWERED}
SIZES = (16, 512)
"""Numbers of tokens that one hash stands for, in the known formats."""
SLOWEST_S = 60.0
"""Largest mean gap, in seconds, at which times may be in seconds."""
CLOSEST_MS = 1.0
"""Smallest mean gap, in milliseconds, at which times may be in milliseconds: a thousand requests a
second.
"""
TEXTS = ("text_input", "messages", "payload", "delay")
"""Fields that AIPerf accepts in place of lengths and times."""


@dataclass(frozen=True)
class Rows:
    """Properties of the first rows of a timed trace, by which its format is recognised."""

    sizes: frozenset[int]
    """Members of `SIZES` that fit all rows; rows that fit none of them are ignored."""
    hashed: bool
    pointed: bool
    """True if any time is written with a decimal point, as 0.2 or 5.0."""
    fraction: bool
    """True if any time is not a whole number."""
    gap: float
    """Mean gap between rows, in the file's unit; 0 for one row."""

    @property
    def in_seconds(self) -> bool | None:
        """True for seconds, False for milliseconds, by the spelling of times and their mean gap;
        None if both are possible.
        """
        if self.pointed and self.gap <= SLOWEST_S:
            return True
        return False if self.pointed and not self.fraction else None


def rows(head: Head) -> Rows | None:
    """Properties of the first rows; None if the first row is not timed, or its hashes fit no
    size.
    """
    first = head.fields
    sizes = frozenset(size for size in SIZES if _fits(first, size))
    if not sizes:
        return None
    times: list[float] = []
    hashed = False
    for row in _timed(chain([first], islice(head.further(), 1, None))):
        sizes = frozenset(size for size in sizes if _fits(row, size)) or sizes
        hashed = hashed or bool(row.get(HASHES))
        times.append(row[TIME])
    return Rows(
        sizes,
        hashed,
        pointed=any(isinstance(time, float) for time in times),
        fraction=any(time != int(time) for time in times),
        gap=max(0.0, times[-1] - times[0]) / max(1, len(times) - 1) if times else 0.0,
    )


def may_be_seconds(found: Rows) -> bool:
    """True if times that are read as milliseconds could also be seconds."""
    return 0 < found.gap <= SLOWEST_S


def may_be_milliseconds(found: Rows) -> bool:
    """True if times that are read as seconds could also be milliseconds."""
    return found.gap >= CLOSEST_MS


def say(name: str) -> str:
    """Advice to read a file as the format `name`, as a part of a message."""
    return f"give --trace-format {name} (or workload.trace_format)"


def why_none(head: Head) -> str | None:
    """Reason why rows that look like a timed trace are invalid, and what to do; None for other
    rows.
    """
    fields = head.fields
    missing = [name for name in (TIME, ASKED, ANSWERED) if name not in fields]
    texts = [name for name in TEXTS if name in fields]
    if missing and texts:
        return (
            f"has {' and '.join(texts)}, as rows for AIPerf may, and no "
            f"{' and no '.join(missing)}: write times, and lengths in tokens, into all rows"
        )
    return None if missing else _hashes_of_none(fields[ASKED], fields.get(HASHES))


def _hashes_of_none(written: Any, hashes: Any) -> str:
    asked = _whole(written)
    if asked is None:
        return f"{ASKED} {shown(written)}, expected a whole number: correct it"
    if not isinstance(hashes, list):
        return f"{HASHES} {shown(hashes)}, expected a list of whole numbers: correct it"
    counts = " or ".join(f"{ceil_div(asked, size)} (of {size} tokens)" for size in SIZES)
    return (
        f"{len(hashes)} hash_ids for {asked} tokens, expected {counts}: correct them, or leave "
        "hash_ids out"
    )


def _fits(row: dict[str, Any], size: int) -> bool:
    """True if a row is timed, and its hashes, if any, can stand for `size` tokens each."""
    asked, hashes = _whole(row.get(ASKED)), row.get(HASHES) or []
    if not set(row) >= FIELDS or asked is None:
        return False
    whole, last = divmod(asked, size)
    return not hashes or (isinstance(hashes, list) and whole <= len(hashes) <= whole + (last > 0))


def _timed(found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows up to the first damaged one."""
    for row in found:
        time = row.get(TIME)
        if not _number(time) or not set(row) >= FIELDS:
            return
        yield row


def _number(value: Any) -> bool:
    """True for a number below 1e18 in size that is not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def _whole(value: Any) -> int | None:
    return int(value) if _number(value) and value == int(value) else None
