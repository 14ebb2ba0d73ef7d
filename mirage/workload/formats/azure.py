"""Azure's LLM inference traces: one CSV row is one request.

Columns ``TIMESTAMP,ContextTokens,GeneratedTokens``. Both published generations are read:
2023 (CRLF, seven fractional digits, no line end after the last row) and 2024 (``+00:00``
zone, some rows without a fraction). A timestamp without a zone is UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from mirage.workload.formats.checks import NANOSECONDS, Clock, tokens_written
from mirage.workload.formats.contract import Format
from mirage.workload.formats.request import Request, TraceError
from mirage.workload.formats.source import Head, Source

HEADER = ["timestamp", "contexttokens", "generatedtokens"]

_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


def _fits(head: Head) -> bool:
    return head.columns == HEADER


def _read(source: Source) -> Iterator[Request]:
    _check_header(source)
    lines = source.lines()
    next(lines)
    clock, empty = Clock(), True
    for where, line in lines:
        yield _request(line, where, clock)
        empty = False
    if empty:
        raise TraceError(f"{source.path}: has a header and no rows: nothing to replay")


def _check_header(source: Source) -> None:
    if not _fits(source.head):
        raise TraceError(
            f"{source.path}, line 1: found {source.head.line[:80]!r}, expected the header "
            "TIMESTAMP,ContextTokens,GeneratedTokens"
        )


def _request(line: str, where: str, clock: Clock) -> Request:
    fields = line.split(",")
    if len(fields) != 3:
        raise TraceError(
            f"{where}: found {line[:80]!r}, expected three fields: timestamp, context, output"
        )
    stamp, context, output = (field.strip() for field in fields)
    nanoseconds = _nanoseconds(stamp, where)
    lengths = tokens_written(context, "context", where), tokens_written(output, "output", where)
    return Request(clock.since_first(nanoseconds, stamp, where), *lengths)


def _nanoseconds(text: str, where: str) -> int:
    """Since 1970. By hand, since `strptime` refuses seven digits and a float loses them."""
    match = _STAMP.fullmatch(text)
    try:
        if not match:
            raise ValueError
        zone = "" if match[3] in (None, "Z") else match[3]
        stamp = datetime.fromisoformat(match[1] + zone)
        stamp = stamp.replace(tzinfo=stamp.tzinfo or UTC)
        seconds = int(stamp.timestamp())
    except (ValueError, OverflowError):
        raise TraceError(
            f"{where}: timestamp {text[:80]!r} is not of the form 2023-11-16 18:17:03.9799600"
        ) from None
    return seconds * NANOSECONDS + int((match[2] or "").ljust(9, "0"))


FORMAT = Format("azure", "CSV, header TIMESTAMP,ContextTokens,GeneratedTokens", _fits, _read)
