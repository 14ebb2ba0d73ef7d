"""BurstGPT: CSV of requests to ChatGPT and GPT-4 in seconds since the first day's midnight.

Columns are found by name, so files with ``Session ID`` and ``Elapsed time`` (BurstGPT_3) and
those without are read. A row with 0 response tokens is a request that failed: it is skipped
and counted. Schema: https://github.com/HPMLL/BurstGPT#schema
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage.workload.formats.checks import Clock, seconds_written, tokens_written
from mirage.workload.formats.contract import Format
from mirage.workload.formats.request import Request, TraceError
from mirage.workload.formats.source import Head, Source

TIME, ASKED, ANSWERED, SESSION = "timestamp", "request tokens", "response tokens", "session id"
FAILED = "failed requests (0 response tokens)"
UNASKED = "rows with 0 request tokens"


def _fits(head: Head) -> bool:
    return {TIME, ASKED, ANSWERED} <= set(head.columns)


def _read(source: Source) -> Iterator[Request]:
    columns = source.head.columns
    if not _fits(source.head):
        raise TraceError(
            f"{source.path}, line 1: found {source.head.line[:80]!r}, expected a header with "
            "Timestamp, Request tokens and Response tokens"
        )
    lines = source.lines()
    next(lines)
    clock, empty = Clock(), True
    for where, line in lines:
        empty = False
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(columns):
            raise TraceError(
                f"{where}: found {line[:80]!r}, expected {len(columns)} fields, as the header has"
            )
        found = _request(dict(zip(columns, fields, strict=True)), where, clock, source)
        if found is not None:
            yield found
    if empty:
        raise TraceError(f"{source.path}: has a header and no rows: nothing to replay")


def _request(row: dict[str, str], where: str, clock: Clock, source: Source) -> Request | None:
    arrival_s = clock.since_first(seconds_written(row[TIME], where), row[TIME], where)
    asked = tokens_written(row[ASKED], "request", where, least=0)
    answered = tokens_written(row[ANSWERED], "response", where, least=0)
    if not asked or not answered:
        source.skip(UNASKED if answered else FAILED)
        return None
    return Request(arrival_s, asked, answered, session=row.get(SESSION) or None)


FORMAT = Format(
    "burstgpt", "CSV, header Timestamp,Model,Request tokens,Response tokens,…", _fits, _read
)
