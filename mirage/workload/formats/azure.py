"""Azure's LLM inference traces: one CSV row is one request.

Columns ``TIMESTAMP``, ``ContextTokens`` and ``GeneratedTokens``, found by name. All published
generations are read: 2023 (CRLF, seven fractional digits, no line end after the last row), 2024
(``+00:00`` zone, some rows without a fraction) and 2025, whose ``NumImages`` is left out: no
pictures are sent. A timestamp without a zone is UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial

from mirage.workload.formats import table
from mirage.workload.formats.checks import NANOSECONDS, Clock, tokens_written
from mirage.workload.formats.contract import Format
from mirage.workload.formats.request import TraceError, TraceRequest
from mirage.workload.formats.source import Source

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
PICTURES = "numimages"

_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


def _read(source: Source) -> Iterator[TraceRequest]:
    clock = Clock()
    for where, row in table.rows(source, HEADER):
        if row.get(PICTURES, "0") not in ("", "0", "0.0"):
            source.say("pictures (NumImages) are left out, the tokens alone are sent")
        stamp, context, output = (row[name.lower()] for name in HEADER)
        arrival_s = clock.since_first(_nanoseconds(stamp, where), stamp, where)
        asked = tokens_written(context, "context", where)
        yield TraceRequest(arrival_s, asked, tokens_written(output, "output", where))


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


FORMAT = Format(
    "azure",
    "CSV, header TIMESTAMP,ContextTokens,GeneratedTokens",
    partial(table.has, wanted=HEADER),
    _read,
    nearly=partial(table.separated_otherwise, wanted=HEADER),
)
