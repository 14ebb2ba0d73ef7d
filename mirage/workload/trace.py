"""Azure's LLM inference traces: one CSV row is one request.

Columns ``TIMESTAMP,ContextTokens,GeneratedTokens``. Both published generations are read:
2023 (CRLF, seven fractional digits, no line end after the last row) and 2024 (``+00:00``
zone, some rows without a fraction). A timestamp without a zone is UTC. Rows are streamed, so
a file of tens of millions of rows is never held in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

HEADER = ("timestamp", "contexttokens", "generatedtokens")
MAX_TOKENS = 10_000_000
"""More than this in one request is taken for a damaged row."""

_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


class TraceError(ValueError):
    """A trace that cannot be replayed; the message is one line with file and line number."""


@dataclass(frozen=True, slots=True)
class Request:
    """Arrival in seconds since the first row (or the window's start), lengths in tokens."""

    arrival_s: float
    context_tokens: int
    output_tokens: int


def read(path: Path) -> Iterator[Request]:
    """The requests of a file in order, one at a time.

    Raises `TraceError` for a file that cannot be read, a missing header, a malformed row, a
    length that is not between 1 and `MAX_TOKENS`, and time that goes backwards.
    """
    first = last = None
    for number, line in _rows(path):
        where = f"{path}, line {number}"
        nanoseconds, context, output = _parse(line, where)
        first = nanoseconds if first is None else first
        if last is not None and nanoseconds < last:
            back = (last - nanoseconds) / 1e9
            raise TraceError(
                f"{where}: time goes back by {back:g} s to {line.split(',')[0]!r}: sort the rows"
            )
        last = nanoseconds
        yield Request((nanoseconds - first) / 1e9, context, output)
    if first is None:
        raise TraceError(f"{path}: has a header and no rows: nothing to replay")


def select(
    path: Path, window: tuple[float, float] | None = None, limit: int | None = None
) -> list[Request]:
    """The requests that arrive in ``window[0] <= t < window[1]`` seconds, at most `limit`.

    Arrivals count from the window's start. Raises `TraceError`, also for an empty window.
    """
    if window is None:
        return list(islice(read(path), limit))
    start, end = window
    chosen = list(islice(_inside(read(path), start, end), limit))
    if not chosen:
        last = max(request.arrival_s for request in read(path))
        raise TraceError(
            f"{path}: no request arrives from {start:g} to {end:g} s: "
            f"the trace is {last:.1f} s long, choose another window"
        )
    return chosen


def scaled(request: Request, time_scale: float, length_scale: float) -> Request:
    """Gaps times `time_scale`, lengths times `length_scale` (at least one token each)."""
    return Request(
        request.arrival_s * time_scale,
        max(1, round(request.context_tokens * length_scale)),
        max(1, round(request.output_tokens * length_scale)),
    )


def parse_window(text: str) -> tuple[float, float]:
    """``"60:120"`` to ``(60.0, 120.0)``. Raises `TraceError` if it is not a range."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*:\s*(\d+(?:\.\d+)?)\s*", text, re.ASCII)
    if not match:
        raise TraceError(f"window {text!r}: write START:END in seconds of the trace, as 60:120")
    start, end = float(match[1]), float(match[2])
    if not start < end:
        raise TraceError(f"window {text!r}: it ends before it starts, write START:END")
    return start, end


def _inside(requests: Iterable[Request], start: float, end: float) -> Iterator[Request]:
    for request in requests:
        if request.arrival_s >= end:
            return
        if request.arrival_s >= start:
            yield Request(request.arrival_s - start, request.context_tokens, request.output_tokens)


def _rows(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of every row after the header; blank lines only at the end."""
    blank = 0
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            _check_header(path, file.readline())
            for number, line in enumerate(file, start=2):
                text = line.strip()
                if not text:
                    blank = blank or number
                elif blank:
                    raise TraceError(f"{path}, line {blank}: blank, and rows follow: remove it")
                else:
                    yield number, text
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from None


def _check_header(path: Path, line: str) -> None:
    if tuple(name.strip().lower() for name in line.split(",")) != HEADER:
        found = line.strip()[:80]
        raise TraceError(
            f"{path}, line 1: found {found!r}, expected the header "
            "TIMESTAMP,ContextTokens,GeneratedTokens"
        )


def _parse(line: str, where: str) -> tuple[int, int, int]:
    fields = line.split(",")
    if len(fields) != 3:
        raise TraceError(
            f"{where}: found {line[:80]!r}, expected three fields: timestamp, context, output"
        )
    return (
        _nanoseconds(fields[0].strip(), where),
        _tokens(fields[1].strip(), "context", where),
        _tokens(fields[2].strip(), "output", where),
    )


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
    return seconds * 10**9 + int((match[2] or "").ljust(9, "0"))


def _tokens(text: str, what: str, where: str) -> int:
    count = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    if not 1 <= count <= MAX_TOKENS:
        raise TraceError(
            f"{where}: {what} tokens {text[:80]!r}, expected a whole number "
            f"from 1 to {MAX_TOKENS:,}"
        )
    return count
