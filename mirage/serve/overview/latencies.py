"""Latencies of recently ended requests. Pure: no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import ceil

from mirage.serve.overview.forms import Latencies
from mirage.serve.whatif.past import ROW, EndedRequest, PastChunk, requests_in

LATELY_S = 60.0
MOST = 500
"""Most requests of a tenant that are used, the newest."""
NONE_ENDED = Latencies(0)


def latencies(chunks: Sequence[PastChunk], now: float) -> dict[str, Latencies]:
    """Latencies by tenant, for tenants with requests that ended in the last `LATELY_S` seconds.

    `now` is by the clock of `PastChunk.told_s`.
    """
    rows: dict[str, list[bytes]] = {}
    left: dict[str, int] = {}
    for chunk in reversed(chunks):
        if chunk.told_s <= now - LATELY_S:
            break
        if (room := left.get(chunk.tenant, MOST)) and chunk.rows:
            taken = chunk.rows[-room * ROW.size :]
            rows.setdefault(chunk.tenant, []).append(taken)
            left[chunk.tenant] = room - len(taken) // ROW.size
    return {
        name: _of(list(chain.from_iterable(map(requests_in, parts))))
        for name, parts in rows.items()
    }


def _of(ended: Sequence[EndedRequest]) -> Latencies:
    streams = [one for one in ended if one.streamed]
    first = sorted(one.first_s for one in streams)
    several = [one for one in streams if one.output > 1]
    each = sorted((one.whole_s - one.first_s) / (one.output - 1) for one in several)
    return Latencies(len(ended), *_quantiles(first), *_quantiles(each))


def _quantiles(ordered: Sequence[float]) -> Iterable[float | None]:
    """The median and the 99th percentile, by nearest rank."""
    return (ordered[ceil(part * len(ordered)) - 1] if ordered else None for part in (0.5, 0.99))
