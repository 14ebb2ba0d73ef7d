"""Orders of the roster, and its answers to requests."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class RosterVerb(StrEnum):
    START = "start"
    """A process, which may hold so many bytes until it is ready."""
    WAKE = "wake"
    """Weights come back to the device."""
    DRAIN = "drain"
    """Begin no request; end what runs."""
    SLEEP = "sleep"
    """Give away all that can be; what still runs loses its KV cache and waits."""
    STOP = "stop"
    """End the process, and what still runs with it."""
    REFUSE = "refuse"
    """Requests that have waited longest, with a Retry-After."""


class RosterOrder(NamedTuple):
    """Order of the roster to one tenant: a verb, with the bytes or seconds that it needs."""

    verb: RosterVerb
    tenant: str
    nbytes: int = 0
    """Bytes of the device that a tenant that comes may hold."""
    least: int = 0
    """Bytes with which it may begin, while the rest is given back by others."""
    seconds: float = 0.0
    """Longest drain; of a refusal, time until the request should come again."""
    requests: int = 0
    """Number of requests that are refused."""
    why: str = ""
    """Reason of a stop that nobody asked for, and of a refusal that is not for time; else empty."""


class Admission(NamedTuple):
    """The answer to a request. Neither passed on nor waiting: refused."""

    passed_on: bool = False
    waits: bool = False
    retry_s: float = 0.0
    """Seconds until it should come again, predicted; of one that is refused."""
