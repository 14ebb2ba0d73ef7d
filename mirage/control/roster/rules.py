"""Rules by which tenants come and yield. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.victims import Rule


@dataclass(frozen=True, slots=True)
class RosterRules:
    """Rules of the roster. A server takes them from section `roster` of its configuration, except
    `sleeps`, which is True under policy mirage and False under any other."""

    victims: Rule = "mru"
    """Order in which idle tenants of equal priority sleep: most recently used first (mru), or least
    recently used first (lru)."""
    worth: float = 1.0
    """Multiple of the seconds of its sleep and wake (or stop and start) for which a tenant is awake
    before it yields."""
    busy_s: float = 5.0
    """Seconds after it became ready before which a tenant with running requests does not yield."""
    busy_worth: float = 6.0
    """Multiple of the seconds of its drain, sleep and wake for which a tenant with running requests
    is awake before it yields."""
    rest_worth: float = 1.0
    """Multiple of the seconds of its stop and start after which an idle sleeping tenant may be
    stopped when another wants to come, so that none with running requests has to yield."""
    spare_part: float = 0.1
    """Part of the device that a tenant that comes leaves free while another has more than one
    running request, if it can be had."""
    patience_s: float = 1.0
    """Seconds that a tenant stands in the line before one with running requests yields to it."""
    drain_s: float = 2.0
    """Longest drain in seconds."""
    obey_s: float = 60.0
    """Longest time in seconds in which an engine has to sleep after the order; then it is
    stopped."""
    sleeps: bool = True
    """True if a tenant that yields sleeps; False if its process ends."""
    asleep_part: float = 0.5
    """Part of the device for all sleeping tenants; beyond it some stop, low priorities first, then
    the longest idle."""
