"""Section `roster`: rules by which tenants sleep and wake on a device that has no room for all."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mirage.config.strict import Strict


class RosterSection(Strict):
    """Rules by which tenants sleep, wake, start and stop if not all fit the device
    (docs/roster.md). Times in seconds.
    """

    victims: Literal["mru", "lru"] = "mru"
    """Order in which idle tenants of equal priority sleep: most recently used first (`mru`), or
    least recently used first (`lru`).
    """
    worth: float = Field(default=1.0, ge=0, le=1e6)
    """A tenant yields only after it was awake for so many times the duration of its sleep and wake
    (if it is to stop, of its stop and start).
    """
    busy_s: float = Field(default=5.0, ge=0, le=1e6)
    """A tenant with running requests yields only after it was ready for so many seconds."""
    busy_worth: float = Field(default=6.0, ge=0, le=1e6)
    """A tenant with running requests yields only after it was awake for so many times the duration
    of its drain, sleep and wake.
    """
    rest_worth: float = Field(default=1.0, ge=0, le=1e6)
    """Before a tenant with running requests yields, tenants stop that have slept without a request
    for so many times the duration of their stop and start.
    """
    spare_part: float = Field(default=0.1, ge=0, le=1)
    """Part of the device, 0 to 1, that stays free for KV memory, if it can be had, when a tenant
    starts or wakes while another one has more than one running request.
    """
    patience_s: float = Field(default=1.0, ge=0, le=1e6)
    """Seconds for which a tenant must have waited for its place before a tenant with running
    requests yields to it.
    """
    drain_s: float = Field(default=2.0, ge=0, le=1e6)
    """Longest drain in seconds. Requests that still run after it wait until their model is awake
    again.
    """
    obey_s: float = Field(default=60.0, gt=0, le=1e6)
    """Seconds within which an engine must sleep after the order to; then it is stopped."""
    asleep_part: float = Field(default=0.5, ge=0, le=1)
    """Most memory that sleeping tenants may hold together, as a part of the device, 0 to 1. Beyond
    it some of them stop: low priorities first, and of equal priorities those idle for longest.
    """
