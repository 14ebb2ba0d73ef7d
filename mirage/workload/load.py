"""Rate of requests as a part of what a machine computes, and the gaps that give this rate."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from mirage.workload.dealing import TenantRequest

REQUESTS, AT_ONCE = 128, 32
"""Requests by which a machine is measured, and those of them that are under way at a time."""
AMPLE = 4
"""Times the device's memory meanwhile, so that KV memory limits nothing."""


def evenly(calls: Collection[TenantRequest], most: int) -> list[TenantRequest]:
    """At most `most` calls, every n-th of them, so that the sample spans all phases."""
    every = max(1, -(-len(calls) // most))
    return list(islice(calls, 0, None, every))


def at_once(requests: int) -> int:
    """Number of requests under way at a time while a machine is measured with `requests` of them.

    It is smaller for few requests: all of them at once would only be a queue that runs out.
    """
    return min(AT_ONCE, max(1, requests // 2))


def capacity_per_s(ended_s: Sequence[float], under_way: int) -> float:
    """Requests a second that a closed loop of `under_way` requests completes. `ended_s` ascends.

    Only until none was left to send: what runs out afterwards leaves the machine half idle.
    """
    full = ended_s[: max(1, len(ended_s) - under_way + 1)]
    return len(full) / full[-1]
