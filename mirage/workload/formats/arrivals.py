"""Arrivals for requests that have none."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from mirage.workload.formats.request import TraceRequest


def poisson(requests: Iterable[TraceRequest], rate: float, seed: int) -> Iterator[TraceRequest]:
    """The same requests, `rate` of them a second on average, the first at 0."""
    drawn = random.Random(f"arrivals {seed}")
    arrival_s = 0.0
    for request in requests:
        yield replace(request, arrival_s=arrival_s)
        arrival_s += drawn.expovariate(rate)
