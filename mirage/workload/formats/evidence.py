"""Timed rows at a file's beginning: evidence for its format in their hashes and times. Pure.

Formats that share the fields differ in the unit of the times and in the tokens of a hash. A file
does not say which it has; its rows together mostly do.
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
"""Tokens that a hash stands for, by format."""
SLOWEST_S = 60.0
"""Largest mean gap, in seconds, of a trace that is taken for one in seconds."""
CLOSEST_MS = 1.0
"""Smallest mean gap, in milliseconds, of one in milliseconds: a thousand requests a second."""
TEXTS = ("text_input", "messages", "payload", "delay")
"""Fields that AIPerf takes in place of lengths and times."""


@dataclass(frozen=True)
class Rows:
    """The first rows of a timed trace, by which its format is told."""

    sizes: frozenset[int]
    """Members of `SIZES` that fit all rows, but for rows that none of them fits."""
    hashed: bool
    pointed: bool
    """True if any time is written with a point, as 0.2 or 5.0."""
    fraction: bool
    """True if any time is no whole number."""
    gap: float
    """The mean gap, in the file's unit; 0 of one row."""

    @property
    def in_seconds(self) -> bool | None:
        """True for seconds, false for milliseconds, by how times are written and their mean gap.

        None where both are possible.
        """
        if self.pointed and self.gap <= SLOWEST_S:
            return True
        return False if self.pointed and not self.fraction else None


def rows(head: Head) -> Rows | None:
    """First rows of a timed trace; None if the first is not timed, or its hashes fit no size."""
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
    """True if times that are taken for milliseconds may as well be seconds."""
    return 0 < found.gap <= SLOWEST_S


def may_be_milliseconds(found: Rows) -> bool:
    """True if times that are taken for seconds may as well be milliseconds."""
    return found.gap >= CLOSEST_MS


def say(name: str) -> str:
    """Advice to read a file as the format `name`, for messages."""
    return f"give --trace-format {name} (or workload.trace_format)"


def why_none(head: Head) -> str | None:
    """Reason why rows like a timed trace's are none, and what to do; None for other rows."""
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
    """True if a row is timed, and its hashes, if any, may stand for `size` tokens each."""
    asked, hashes = _whole(row.get(ASKED)), row.get(HASHES) or []
    if not set(row) >= FIELDS or asked is None:
        return False
    whole, last = divmod(asked, size)
    return not hashes or (isinstance(hashes, list) and whole <= len(hashes) <= whole + (last > 0))


def _timed(found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows up to the first that is damaged."""
    for row in found:
        time = row.get(TIME)
        if not _number(time) or not set(row) >= FIELDS:
            return
        yield row


def _number(value: Any) -> bool:
    """True for a number, not a bool, of a size that JSON and clocks have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def _whole(value: Any) -> int | None:
    return int(value) if _number(value) and value == int(value) else None
