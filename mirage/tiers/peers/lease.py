"""Lease: a piece of another device's memory, and its holder's hints for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Lease(NamedTuple):
    """Bytes of a device that one holder has until they are freed or revoked."""

    device: str
    offset: int
    """Bytes from the start of the device's region."""
    nbytes: int
    number: int
    """No two leases have the same, ever."""


@dataclass(frozen=True, slots=True)
class Hints:
    """Wishes for memory."""

    holder: str = ""
    """Holder that hears of its revocation, and whose end frees it."""
    device: str | None = None
    """Only there; None takes the best fit of all."""
    backed: bool = False
    """Revocation waits until the holder has `saved` what lies there; else it is lost."""


class StaleLease(ValueError):
    """A lease was freed or revoked before; the message names it."""


class StillPinned(ValueError):
    """A copy reads or writes a lease's memory; the message names the lease."""
