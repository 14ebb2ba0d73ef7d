"""Rate of requests as a part of a machine's capacity, and the measurement of this capacity."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from mirage.workload.dealing import TenantRequest

REQUESTS, AT_ONCE = 128, 32
"""Requests with which the capacity is measured, and most of them in flight at a time."""
AMPLE = 4
"""Factor by which the device's memory is increased for the measurement, so that KV memory does not
limit it.
"""


def evenly(calls: Collection[TenantRequest], most: int) -> list[TenantRequest]:
    """At most `most` calls, every n-th one, so that the sample spans all phases."""
    every = max(1, -(-len(calls) // most))
    return list(islice(calls, 0, None, every))


def at_once(requests: int) -> int:
    """Number of requests in flight while the capacity is measured with `requests` requests.

    It is smaller for few requests: with all of them in flight, the measurement would only be a
    queue that empties.
    """
    return min(AT_ONCE, max(1, requests // 2))


def capacity_per_s(ended_s: Sequence[float], under_way: int) -> float:
    """Requests a second that a closed loop with `under_way` requests in flight completes. `ended_s`
    has the end of each request in seconds since the loop's start, in ascending order.

    Only the time with `under_way` requests in flight counts: after it the machine is no longer
    fully used.
    """
    full = ended_s[: max(1, len(ended_s) - under_way + 1)]
    return len(full) / full[-1]
