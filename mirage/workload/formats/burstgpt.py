"""BurstGPT: CSV of requests to ChatGPT and GPT-4 in seconds since the first day's midnight.

Columns are found by name, so files with ``Session ID`` and ``Elapsed time`` (BurstGPT_3) and
those without are read. A row with 0 response tokens is a request that failed: it is skipped
and counted. Schema: https://github.com/HPMLL/BurstGPT#schema
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from mirage.workload.formats import table
from mirage.workload.formats.checks import Clock, seconds_written, tokens_written
from mirage.workload.formats.contract import Format
from mirage.workload.formats.request import TraceRequest
from mirage.workload.formats.source import Source

HEADER = ("Timestamp", "Request tokens", "Response tokens")
TIME, ASKED, ANSWERED = (name.lower() for name in HEADER)
SESSION = "session id"
FAILED = "failed requests (0 response tokens)"
UNASKED = "rows with 0 request tokens"


def _read(source: Source) -> Iterator[TraceRequest]:
    clock = Clock()
    for where, row in table.rows(source, HEADER):
        found = _request(row, where, clock, source)
        if found is not None:
            yield found


def _request(row: dict[str, str], where: str, clock: Clock, source: Source) -> TraceRequest | None:
    arrival_s = clock.since_first(seconds_written(row[TIME], where), row[TIME], where)
    asked = tokens_written(row[ASKED], "request", where, least=0)
    answered = tokens_written(row[ANSWERED], "response", where, least=0)
    if not asked or not answered:
        source.skip(UNASKED if answered else FAILED)
        return None
    return TraceRequest(arrival_s, asked, answered, session=row.get(SESSION) or None)


FORMAT = Format(
    "burstgpt",
    "CSV, header Timestamp,Model,Request tokens,Response tokens,…",
    partial(table.has, wanted=HEADER),
    _read,
    nearly=partial(table.separated_otherwise, wanted=HEADER),
)
