"""Azure's LLM inference traces: one CSV row is one request.

Columns ``TIMESTAMP``, ``ContextTokens`` and ``GeneratedTokens``, found by name. All published
generations are read: 2023 (CRLF, seven fractional digits, no line end after the last row), 2024
(``+00:00`` zone, some rows without a fraction) and 2025, whose ``NumImages`` is left out: no
pictures are sent. A timestamp without a zone is UTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from mirage.workload.formats import table
from mirage.workload.formats.checks import Clock, tokens_written
from mirage.workload.formats.contract import Format
from mirage.workload.formats.request import TraceRequest
from mirage.workload.formats.source import Source
from mirage.workload.formats.stamps import nanoseconds

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
PICTURES = "numimages"


def _read(source: Source) -> Iterator[TraceRequest]:
    clock = Clock()
    for where, row in table.rows(source, HEADER):
        if row.get(PICTURES, "0") not in ("", "0", "0.0"):
            source.say("pictures (NumImages) are left out, the tokens alone are sent")
        stamp, context, output = (row[name.lower()] for name in HEADER)
        arrival_s = clock.since_first(nanoseconds(stamp, where), stamp, where)
        asked = tokens_written(context, "context", where)
        yield TraceRequest(arrival_s, asked, tokens_written(output, "output", where))


FORMAT = Format(
    "azure",
    "CSV, header TIMESTAMP,ContextTokens,GeneratedTokens",
    partial(table.has, wanted=HEADER),
    _read,
    nearly=partial(table.separated_otherwise, wanted=HEADER),
)
