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
    """Number of the lease; it is never used again."""


@dataclass(frozen=True, slots=True)
class Hints:
    """Wishes for a lease's memory."""

    holder: str = ""
    """Name of the holder that is told of its revocation, and whose end frees it."""
    device: str | None = None
    """Only device to lend from; None for the best fit of all devices."""
    backed: bool = False
    """True if revocation waits until the holder has `saved` the content; otherwise the content is
    lost."""


class StaleLease(ValueError):
    """Error: a lease was freed or revoked before; the message names it."""


class StillPinned(ValueError):
    """Error: a copy reads or writes a lease's memory; the message names the lease."""
