"""Rules by which tenants come and yield. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.victims import Rule


@dataclass(frozen=True, slots=True)
class RosterRules:
    """Defaults are what a server would go by; others are there to be measured against them."""

    victims: Rule = "mru"
    """Among idle tenants of equal priority, who sleeps first."""
    worth: float = 1.0
    """Nobody yields before it was awake as long as its way out and back takes, so many times."""
    busy_s: float = 5.0
    """A tenant with running requests yields no earlier than so long after it became ready."""
    patience_s: float = 1.0
    """Nor before somebody has stood in the line for so long."""
    drain_s: float = 2.0
    """Longest drain."""
    sleeps: bool = True
    """Whether who yields sleeps; else its process ends."""
    asleep_part: float = 0.5
    """Of the device, what sleeping tenants may hold together; beyond, the longest idle stop."""
