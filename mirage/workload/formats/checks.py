"""Checks of a row's fields. Each returns the value, or raises a `TraceError` that names the
field.
"""

from __future__ import annotations

import math
import re
from typing import Any

from mirage.workload.formats.request import MAX_TOKENS, TraceError
from mirage.workload.formats.telling import shown

CHARACTERS_PER_TOKEN = 4
"""Characters of a token, assumed for texts without a count of tokens: that of English with the
vocabularies of large models.
"""

NANOSECONDS = 10**9
_MOST_SECONDS = 10**11

_WHOLE = re.compile(r"(\d{1,19})(?:\.0*)?", re.ASCII)
_DECIMAL = re.compile(r"(\d{1,11})(?:\.(\d{1,9})0*)?", re.ASCII)


class Clock:
    """Converter of a trace's times, with any origin, into seconds since its first row."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = 0

    def since_first(self, nanoseconds: int, written: str, where: str) -> float:
        """Seconds since the first row. Raises `TraceError` if time goes back; `written` is the time
        as in the file.
        """
        if self._first is None:
            self._first = self._last = nanoseconds
        if nanoseconds < self._last:
            back = (self._last - nanoseconds) / NANOSECONDS
            raise TraceError(f"{where}: time goes back by {back:g} s to {written!r}: sort the rows")
        self._last = nanoseconds
        return (nanoseconds - self._first) / NANOSECONDS


def tokens_written(text: str, what: str, where: str, least: int = 1) -> int:
    """A number of tokens, at least `least`, in a column of a CSV file; 472.0, as pandas writes it,
    counts as 472. Raises `TraceError` for any other text; it names the field by `what` and the row
    by `where`.
    """
    match = _WHOLE.fullmatch(text)
    count = int(match[1]) if match else -1
    return _in_bounds(count, text[:80], what, where, least)


def tokens(value: Any, what: str, where: str, least: int = 1) -> int:
    """A number of tokens, at least `least`, in a JSON field; 10.0 counts as 10. Raises `TraceError`
    for any other value; it names the field by `what` and the row by `where`.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    count = value if isinstance(value, int) and not isinstance(value, bool) else -1
    return _in_bounds(count, value, what, where, least)


def seconds_written(text: str, where: str) -> int:
    """Nanoseconds of a number of seconds in a column of a CSV file. Raises `TraceError` for any
    other text.
    """
    match = _DECIMAL.fullmatch(text)
    if not match:
        raise TraceError(f"{where}: Timestamp {text[:80]!r}, expected seconds, as 862919 or 45.5")
    return int(match[1]) * NANOSECONDS + int((match[2] or "").ljust(9, "0"))


def moment(value: Any, what: str, where: str, unit: int) -> int:
    """Nanoseconds of a time that a JSON field has as a number of units, each of `unit` nanoseconds.
    Raises `TraceError` for a value that is no number, negative or too large; it names the field by
    `what` and the row by `where`.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    most = _MOST_SECONDS * NANOSECONDS // unit
    if not number or not 0 <= value <= most:
        raise TraceError(f"{where}: {what} {shown(value)}, expected a number from 0 to {most:g}")
    return value * unit if isinstance(value, int) else round(value * unit)


def text(entry: dict[str, Any], key: str, where: str) -> str:
    """A text field. Raises `TraceError` if it is missing or no text."""
    if key not in entry:
        raise TraceError(f"{where}: has no {key!r}, only {_names(entry)}: add it")
    value = entry[key]
    if not isinstance(value, str):
        raise TraceError(f"{where}: {key} {shown(value)}, expected a text")
    return value


def field(entry: dict[str, Any], key: str, where: str) -> Any:
    """A field of any kind. Raises `TraceError` if it is missing."""
    if key not in entry:
        raise TraceError(f"{where}: has no {key!r}, only {_names(entry)}: add it")
    return entry[key]


def session(entry: dict[str, Any], key: str, where: str) -> str | None:
    """Name of a session, written as a text or a whole number; None if the row has none. Raises
    `TraceError` for any other value.
    """
    found = entry.get(key)
    if found is not None and (isinstance(found, bool) or not isinstance(found, (int, str))):
        raise TraceError(f"{where}: {key} {shown(found)}, expected a text or a number")
    return None if found is None else str(found)


def estimated(characters: int, what: str, where: str) -> int:
    """Estimated tokens of a text of so many characters, at least 1. Raises `TraceError` if they are
    too many; it names the field by `what` and the row by `where`.
    """
    count = max(1, math.ceil(characters / CHARACTERS_PER_TOKEN))
    return _in_bounds(count, count, what, where, 1)


def _in_bounds(count: int, found: object, what: str, where: str, least: int) -> int:
    if not least <= count <= MAX_TOKENS:
        raise TraceError(
            f"{where}: {what} tokens {shown(found)}, expected a whole number "
            f"from {least} to {MAX_TOKENS:,}"
        )
    return count


def _names(entry: dict[str, Any]) -> str:
    return shown(", ".join(entry)) if entry else "nothing"
