"""Orders of the roster, and its answers to requests."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class RosterVerb(StrEnum):
    START = "start"
    """Start a process, which may hold `nbytes` bytes until it is ready."""
    WAKE = "wake"
    """Bring the weights back to the device."""
    DRAIN = "drain"
    """Begin no request and let running ones finish."""
    SLEEP = "sleep"
    """Give away all memory that can be given; running requests lose their KV cache and wait."""
    STOP = "stop"
    """End the process, and with it the requests that still run."""
    REFUSE = "refuse"
    """Refuse the requests that have waited longest, with a Retry-After."""


class RosterOrder(NamedTuple):
    """Order of the roster to one tenant: a verb, with the bytes or seconds that it needs."""

    verb: RosterVerb
    tenant: str
    nbytes: int = 0
    """Bytes of the device that a tenant may hold when it starts or wakes."""
    least: int = 0
    """Bytes with which it may begin, while others give back the rest."""
    seconds: float = 0.0
    """Longest drain in seconds; for a refusal, seconds until the client should ask again."""
    requests: int = 0
    """Number of requests that are refused."""
    why: str = ""
    """Reason of a stop that was not planned, and of a refusal for another cause than waiting time;
    else empty."""


class Admission(NamedTuple):
    """Answer to a request. If it neither is passed on nor waits, it is refused."""

    passed_on: bool = False
    waits: bool = False
    retry_s: float = 0.0
    """For a refused request, predicted seconds until the client should ask again."""
