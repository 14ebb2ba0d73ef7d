"""Drawn arrivals for the requests of traces that have no arrivals."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from mirage.workload.formats.request import TraceRequest


def poisson(requests: Iterable[TraceRequest], rate: float, seed: int) -> Iterator[TraceRequest]:
    """`requests` with Poisson arrivals, on average `rate` a second; the first arrives at 0 s."""
    drawn = random.Random(f"arrivals {seed}")
    arrival_s = 0.0
    for request in requests:
        yield replace(request, arrival_s=arrival_s)
        arrival_s += drawn.expovariate(rate)
