"""A tenant as its operator wants it: what is declared, and nothing of what is so now."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from scheduler.tenants import Tenant

AUTO = None
"""A `share` that is as small as it can be with all layers in place."""
WHOLE = 100.0
"""Per cent."""


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant as configured. Times in seconds; infinite means never."""

    name: str
    share: float | None = AUTO
    """Per cent of the device that it is sure of while it is awake."""
    priority: int = 0
    """Higher yields its place later. Nobody comes earlier by it: else low ones might never."""
    floor_layers: int = 1
    max_percent: float | None = None
    start: Literal["eager", "on_request"] = "eager"
    """Eager: its process starts before anybody asks, for which idle tenants may sleep."""
    keep_alive_s: float = inf
    """Seconds without a request after which it sleeps."""
    stop_after_s: float = inf
    """Seconds asleep after which its process ends."""
    keep_weights: Literal["host", "none"] = "host"
    """Copy of the weights that stays when its process has ended."""
    pinned: bool = False
    """True if it never yields its place to others; its own times count as ever."""
    queued: int = 128
    """Requests that may wait while it comes."""
    wait_s: float = 60.0
    """Seconds for which each of them may wait."""

    @property
    def entitled(self) -> Tenant:
        """The part that the controller's decisions depend on."""
        share = WHOLE if self.share is AUTO else self.share
        return Tenant(self.name, share, self.priority, self.floor_layers, self.max_percent)
