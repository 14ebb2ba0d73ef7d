"""Tenants as the deciding code knows them: their rights, and when they last had work."""

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
    """Per cent of the device memory that it is entitled to."""
    priority: int = 0
    """Higher is served earlier and yields later."""
    floor_layers: int = 1
    """Layers that stay resident whatever happens."""
    max_percent: float | None = None
    """Most of its layers that may be given away; None for what holds for all tenants."""
    max_cost_ms: float | None = None
    """Time that waiting for its layers may add to its tokens, on average, before it gives no more
    of them; None without a bound."""

    def share_bytes(self, device_bytes: int) -> int:
        """Bytes of a device of `device_bytes` that the share amounts to, rounded down.

        In whole millionths of a per cent, so that the bytes of shares that add up to 100 %
        never add up to more than the device.
        """
        return device_bytes * floor(self.share * 1e6 + 1e-3) // 10**8


class Activity(msgspec.Struct, frozen=True):
    """Activity of a tenant: does it have work, and when did it last have any (seconds; -inf for
    never).
    """

    busy: bool = False
    last_busy: float = -inf

    def seen(self, busy: bool, now: float) -> Activity:
        """The activity after it was seen busy or idle at `now`.

        A tenant that was busy when last seen counts as busy up to `now`.
        """
        return Activity(busy, now if busy or self.busy else self.last_busy)

    def at(self, now: float, cooldown_s: float) -> Clocked[bool]:
        """True if it is active: busy, or busy less than `cooldown_s` ago.

        A pause between requests is not idleness.
        """
        if self.busy:
            return Clocked(True)
        until = self.last_busy + cooldown_s
        return Clocked(True, until) if until > now else Clocked(False)
