"""Tenants as the deciding code knows them: their rights, and the time of their last work."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf

import msgspec

from scheduler.clocked import Clocked


@dataclass(frozen=True, slots=True)
class Tenant:
    """The part of a tenant's configuration that decisions depend on."""

    name: str
    share: float
    """Per cent of the device memory that the tenant is entitled to."""
    priority: int = 0
    """Rank among tenants: a tenant with a higher number is served earlier and gives memory
    later."""
    floor_layers: int = 1
    """Number of layers that always stay resident."""
    max_percent: float | None = None
    """Per cent of the tenant's layers that may be given away at most; None for the limit that
    applies to each tenant without one of its own."""
    max_cost_ms: float | None = None
    """Milliseconds that loads of its layers may add to a token on average; beyond that the tenant
    gives no more layers. None for no limit."""

    def share_bytes(self, device_bytes: int) -> int:
        """Return the bytes of the share of a device of `device_bytes`, rounded down.

        They are computed in whole millionths of a per cent, so that shares that add up to 100 %
        never add up to more bytes than the device has.
        """
        return device_bytes * floor(self.share * 1e6 + 1e-3) // 10**8


class Activity(msgspec.Struct, frozen=True):
    """Activity of a tenant: `busy` is True if it has work, `last_busy` is the time in seconds at
    which it last had some (-inf for never)."""

    busy: bool = False
    last_busy: float = -inf

    def seen(self, busy: bool, now: float) -> Activity:
        """Return the activity after the tenant was seen busy or idle at `now`.

        A tenant that was busy when it was last seen counts as busy up to `now`.
        """
        return Activity(busy, now if busy or self.busy else self.last_busy)

    def at(self, now: float, cooldown_s: float) -> Clocked[bool]:
        """Return True, with the time until which that is valid, if the tenant is busy or was busy
        less than `cooldown_s` seconds before `now`; else False, valid for ever.

        The cooldown keeps a pause between two requests from counting as idleness.
        """
        if self.busy:
            return Clocked(True)
        until = self.last_busy + cooldown_s
        return Clocked(True, until) if until > now else Clocked(False)
