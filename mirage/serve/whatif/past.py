"""Requests of the last hour: only lengths and times, in rows of a few bytes. Pure: no clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from math import isnan, nan
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

ROW = Struct("<dIIff?")
HOUR_S = 3600.0
MOST_ROWS = 100_000
"""Most rows that a server keeps, 2.5 MB; with more requests it keeps less than an hour."""
MOST_UNTOLD = 10_000
"""Most rows that a router keeps for the supervisor."""
LARGEST = 2**32 - 1
"""Largest number of tokens in a row."""


class EndedRequest(NamedTuple):
    """Request that an engine has answered. Times are seconds by `time.monotonic`."""

    arrival_s: float
    prompt: int
    """Number of prompt tokens."""
    output: int
    """Number of output tokens."""
    first_s: float
    """Seconds until the first token; NaN if the answer was no stream."""
    whole_s: float
    """Seconds until the last token."""
    counted: bool = True
    """True if the answer told its tokens; false if they are estimated from bytes and events."""

    @property
    def row(self) -> bytes:
        """The request as a packed row."""
        prompt, output = (min(LARGEST, max(0, n)) for n in (self.prompt, self.output))
        return ROW.pack(self.arrival_s, prompt, output, self.first_s, self.whole_s, self.counted)

    @property
    def streamed(self) -> bool:
        """True if the time of the request's first token is known."""
        return not isnan(self.first_s)


NO_STREAM = nan


def requests_in(rows: bytes) -> Iterator[EndedRequest]:
    """Requests in packed rows, as `EndedRequest.row` makes them."""
    return (EndedRequest(*row) for row in ROW.iter_unpack(rows))


class UntoldRequests:
    """Rows of ended requests until they are fetched. Beyond `most` rows the oldest are dropped."""

    def __init__(self, most: int = MOST_UNTOLD) -> None:
        self._most, self._rows = most, bytearray()

    def add(self, request: EndedRequest) -> None:
        """Add a request that has ended."""
        self._rows += request.row
        if len(self._rows) > self._most * ROW.size:
            del self._rows[: ROW.size]

    def take(self) -> bytes:
        """Remove and return all rows."""
        taken = bytes(self._rows)
        self._rows.clear()
        return taken


class PastChunk(NamedTuple):
    """Rows of one tenant that were added together."""

    end: int
    """Number of its last row, counted over all rows since the server's start."""
    told_s: float
    tenant: str
    rows: bytes
    preempted: int
    """Number of preemptions by the engine, from its start until the rows were added."""

    @property
    def begin(self) -> int:
        """Number of the row before the first one of this chunk."""
        return self.end - len(self.rows) // ROW.size


class PastPage(NamedTuple):
    """Some rows in the order in which they were added, in parts with rows of one tenant each."""

    parts: list[tuple[str, bytes]]
    last: int
    """Number of the last row of this page; that of the row before if it has none."""
    is_newest: bool
    """True if no newer row exists."""

    @property
    def next_since(self) -> int | None:
        """Number of the row after which the next page begins; None if no newer row exists."""
        return None if self.is_newest else self.last


class PastRequests:
    """Rows of all tenants of the last hour, at most `most`. No call takes long. Times are
    seconds."""

    def __init__(self, most: int = MOST_ROWS, span_s: float = HOUR_S) -> None:
        self._most, self._span_s = most, span_s
        self._chunks: list[PastChunk] = []
        self._end = self._count = 0

    def add(self, tenant: str, rows: bytes, preempted: int, now: float) -> None:
        """Add packed rows of ended requests of a tenant at the time `now`; `preempted` is its
        engine's count of preemptions so far."""
        rows = rows[: len(rows) // ROW.size * ROW.size][-self._most * ROW.size :]
        count = len(rows) // ROW.size
        self._end += count
        self._count += count
        self._chunks.append(PastChunk(self._end, now, tenant, rows, preempted))
        self._drop(now)

    def _drop(self, now: float) -> None:
        gone = 0
        for chunk in self._chunks:
            if chunk.told_s > now - self._span_s and self._count <= self._most:
                break
            self._count -= len(chunk.rows) // ROW.size
            gone += 1
        del self._chunks[:gone]

    def forget(self, tenant: str) -> None:
        """Drop all rows of a tenant that was removed."""
        self._chunks = [chunk for chunk in self._chunks if chunk.tenant != tenant]
        self._count = sum(len(chunk.rows) // ROW.size for chunk in self._chunks)

    def page(self, since: int, limit: int, now: float) -> PastPage:
        """The first `limit` rows whose numbers are greater than `since`."""
        self._drop(now)
        parts: list[tuple[str, bytes]] = []
        left, at = limit, since
        first = bisect_right(self._chunks, since, key=attrgetter("end"))
        for chunk in islice(self._chunks, first, None):
            if not left:
                return PastPage(parts, at, is_newest=False)
            skipped = max(0, since - chunk.begin)
            rows = chunk.rows[skipped * ROW.size : (skipped + left) * ROW.size]
            taken = len(rows) // ROW.size
            parts.append((chunk.tenant, rows))
            left, at = left - taken, chunk.begin + skipped + taken
        return PastPage(parts, at, is_newest=at >= self._end or not parts)

    @property
    def chunks(self) -> list[PastChunk]:
        """Copy of the list of kept chunks, for another thread."""
        return self._chunks.copy()


def preempted_in(chunks: Iterable[PastChunk]) -> dict[str, int]:
    """Number of preemptions of each tenant's requests after its first chunk was added."""
    last: dict[str, int] = {}
    found: dict[str, int] = {}
    for chunk in chunks:
        before = last.get(chunk.tenant, chunk.preempted)
        more = chunk.preempted - (before if chunk.preempted >= before else 0)
        found[chunk.tenant] = found.get(chunk.tenant, 0) + more
        last[chunk.tenant] = chunk.preempted
    return found
