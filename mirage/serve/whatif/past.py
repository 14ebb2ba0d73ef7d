"""Requests of the last hour: lengths and times alone, in rows of a few bytes. Pure: no clock."""

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
"""Rows that a server has at most, with which the hour may be shorter; 2.5 MB."""
MOST_UNTOLD = 10_000
"""Rows that a router keeps while nobody takes them."""
LARGEST = 2**32 - 1
"""Tokens that a row can have."""


class EndedRequest(NamedTuple):
    """A request that an engine has answered. Seconds; times are the machine's clock's."""

    arrival_s: float
    prompt: int
    """Tokens."""
    output: int
    """Tokens."""
    first_s: float
    """Seconds until the first token; not a number if its answer was no stream."""
    whole_s: float
    """Seconds until the last token."""
    counted: bool = True
    """True if the answer told the tokens; else they are guessed by bytes and events."""

    @property
    def row(self) -> bytes:
        """Row of it."""
        prompt, output = (min(LARGEST, max(0, n)) for n in (self.prompt, self.output))
        return ROW.pack(self.arrival_s, prompt, output, self.first_s, self.whole_s, self.counted)

    @property
    def streamed(self) -> bool:
        """True if it is known when its first token came."""
        return not isnan(self.first_s)


NO_STREAM = nan


def requests_in(rows: bytes) -> Iterator[EndedRequest]:
    """Requests of whole rows."""
    return (EndedRequest(*row) for row in ROW.iter_unpack(rows))


class UntoldRequests:
    """Rows of ended requests that wait to be fetched. Beyond a bound the oldest are dropped."""

    def __init__(self, most: int = MOST_UNTOLD) -> None:
        self._most, self._rows = most, bytearray()

    def add(self, request: EndedRequest) -> None:
        """Add a request that has ended."""
        self._rows += request.row
        if len(self._rows) > self._most * ROW.size:
            del self._rows[: ROW.size]

    def take(self) -> bytes:
        """Rows of all ended requests that were not taken before."""
        taken = bytes(self._rows)
        self._rows.clear()
        return taken


class PastChunk(NamedTuple):
    """Rows of one tenant that came together."""

    end: int
    """Number of its last row, counted from the server's start."""
    told_s: float
    tenant: str
    rows: bytes
    preempted: int
    """Requests that its engine had preempted by then."""

    @property
    def begin(self) -> int:
        """Number of the row before its first."""
        return self.end - len(self.rows) // ROW.size


class PastPage(NamedTuple):
    """Some rows by their tenants, in the order in which they came."""

    parts: list[tuple[str, bytes]]
    next_since: int | None
    """Number of the last of them; None with the newest."""


class PastRequests:
    """Rows of all tenants for an hour, and so many at most. Nothing of it takes long."""

    def __init__(self, most: int = MOST_ROWS, span_s: float = HOUR_S) -> None:
        self._most, self._span_s = most, span_s
        self._chunks: list[PastChunk] = []
        self._end = self._count = 0

    def add(self, tenant: str, rows: bytes, preempted: int, now: float) -> None:
        """Rows of a tenant, whose engine has preempted so many requests since its start."""
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
        """A tenant that was removed: nothing of it stays."""
        self._chunks = [chunk for chunk in self._chunks if chunk.tenant != tenant]
        self._count = sum(len(chunk.rows) // ROW.size for chunk in self._chunks)

    def page(self, since: int, limit: int, now: float) -> PastPage:
        """The first `limit` rows after number `since`."""
        self._drop(now)
        parts: list[tuple[str, bytes]] = []
        left, at = limit, since
        first = bisect_right(self._chunks, since, key=attrgetter("end"))
        for chunk in islice(self._chunks, first, None):
            if not left:
                return PastPage(parts, at)
            skipped = max(0, since - chunk.begin)
            rows = chunk.rows[skipped * ROW.size : (skipped + left) * ROW.size]
            taken = len(rows) // ROW.size
            parts.append((chunk.tenant, rows))
            left, at = left - taken, chunk.begin + skipped + taken
        return PastPage(parts, at if at < self._end and parts else None)

    @property
    def chunks(self) -> list[PastChunk]:
        """Copy of the kept chunks, which another thread may read."""
        return self._chunks.copy()


def preempted_in(chunks: Iterable[PastChunk]) -> dict[str, int]:
    """Requests of each tenant that were preempted since its first of these rows."""
    last: dict[str, int] = {}
    found: dict[str, int] = {}
    for chunk in chunks:
        before = last.get(chunk.tenant, chunk.preempted)
        more = chunk.preempted - (before if chunk.preempted >= before else 0)
        found[chunk.tenant] = found.get(chunk.tenant, 0) + more
        last[chunk.tenant] = chunk.preempted
    return found
