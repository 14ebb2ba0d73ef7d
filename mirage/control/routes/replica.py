"""Replicas of one tenant as a router knows them: the engine of each, and its load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mirage.control.roster.states import COMING, LifeState

WAKEABLE = COMING | {LifeState.SLEEPING, LifeState.STOPPED, LifeState.DOWN}
"""States in which a replica starts or wakes, or can be ordered to."""


class RouteTarget(NamedTuple):
    """Engine that requests may go to."""

    tenant: str
    device: str
    socket: str
    """Path of the Unix socket on which the engine's API server listens."""
    state: LifeState = LifeState.READY


class Replica(NamedTuple):
    """Engine that requests may go to, and its load."""

    target: RouteTarget
    in_flight: int = 0
    """Number of requests that were passed on to it, or wait for it, and have not ended."""
    rate: float = 0.0
    """Requests a second that the replica ends when it is busy; 0 while unknown."""
    comes_s: float = 0.0
    """Seconds until the replica is ready, from its present state."""
    yields: int = 0
    """Bytes that other tenants of its device have to give before it can start or wake."""
    open: bool = True
    """False once its route is closed: running requests end, and no new ones are sent."""

    @property
    def device(self) -> str:
        return self.target.device


def known_rates(replicas: Sequence[Replica]) -> dict[str, float]:
    """Return the rate of each replica by its device; an unknown one is the mean of the others, or
    1."""
    known = [each.rate for each in replicas if each.rate > 0]
    mean = sum(known) / len(known) if known else 1.0
    return {each.device: each.rate or mean for each in replicas}
