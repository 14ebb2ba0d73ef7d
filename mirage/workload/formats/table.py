"""CSV files with a header line: rows by the names of their columns, in any order.

Columns that are not wanted are ignored, such as the index that pandas writes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from mirage.workload.formats.head import Head
from mirage.workload.formats.request import TraceError
from mirage.workload.formats.source import Source

SEPARATORS = (";", "\t", "|")
"""Column separators other than the comma, which are not read: messages name them."""


def columns(head: Head) -> list[str]:
    """Names of the columns in the first line, in lower case."""
    return [name.lower() for name in _fields(head.line)]


def has(head: Head, wanted: Sequence[str]) -> bool:
    """True if the header has all wanted columns, in upper or lower case."""
    return {name.lower() for name in wanted} <= set(columns(head))


def separated_otherwise(head: Head, wanted: Sequence[str]) -> str | None:
    """Advice if the header has the wanted columns with another separator than the comma; None
    otherwise.
    """
    for mark in SEPARATORS:
        if mark in head.line and has(Head(head.line.replace(mark, ",")), wanted):
            return f"columns are separated by {mark!r}: write commas"
    return None


def rows(source: Source, wanted: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Place of each row, and its fields by the lower-case names of their columns.

    Raises `TraceError` for a header without a wanted column, a row with another number of fields
    than the header, or no rows.
    """
    if not has(source.head, wanted):
        raise TraceError(
            f"{source.path}, line 1: found {source.head.line[:80]!r}, expected a header with "
            f"{', '.join(wanted)}"
        )
    names = columns(source.head)
    lines = source.lines()
    next(lines)
    empty = True
    for where, line in lines:
        empty = False
        fields = _fields(line)
        if len(fields) != len(names):
            raise TraceError(
                f"{where}: found {line[:80]!r}, expected {len(names)} fields, as the header has"
            )
        yield where, dict(zip(names, fields, strict=True))
    if empty:
        raise TraceError(f"{source.path}: has a header and no rows: nothing to replay")


def _fields(line: str) -> list[str]:
    """Fields of a line, each without its quotes and surrounding blanks. The list is empty if a
    field is too long.
    """
    try:
        split = next(csv.reader([line]), []) if '"' in line else line.split(",")
    except csv.Error:  # a field of more than its 128 KiB
        split = []
    return [field.strip() for field in split]
