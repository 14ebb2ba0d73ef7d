"""A tenant as its operator declares it, without its present state."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from scheduler.tenants import Tenant

AUTO = None
"""Value of `share` that stands for the smallest share that holds all layers and the KV cache of the
longest request."""
WHOLE = 100.0
"""Per cent of a device: all of it."""


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant as configured. Times are seconds; infinite means never."""

    name: str
    share: float | None = AUTO
    """Per cent of the device that the tenant is sure of while it is awake."""
    priority: int = 0
    """A tenant with a higher number yields its place later. It does not come earlier, otherwise
    tenants with low numbers might never come."""
    floor_layers: int = 1
    max_percent: float | None = None
    start: Literal["eager", "on_request"] = "eager"
    """Eager: its process starts before any request, and idle tenants may be put to sleep for
    that."""
    keep_alive_s: float = inf
    """Seconds without a request after which the tenant sleeps, or its process ends if
    `RosterRules.sleeps` is False."""
    stop_after_s: float = inf
    """Seconds asleep after which its process ends."""
    keep_weights: Literal["host", "none"] = "host"
    """Place of a copy of the weights that stays when its process has ended; "none" for no copy."""
    pinned: bool = False
    """True if the tenant never yields its place to others; its own time limits still apply."""
    queued: int = 128
    """Number of requests that may wait while the tenant comes."""
    wait_s: float = 60.0
    """Seconds for which each request may wait while the tenant comes."""

    @property
    def entitled(self) -> Tenant:
        """Rights of the tenant that the controller's decisions depend on."""
        share = WHOLE if self.share is AUTO else self.share
        return Tenant(self.name, share, self.priority, self.floor_layers, self.max_percent)
