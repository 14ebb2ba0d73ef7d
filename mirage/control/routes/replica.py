"""Replicas of one tenant as a router knows them: where each is, and how busy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mirage.control.roster.states import COMING, LifeState

WAKEABLE = COMING | {LifeState.SLEEPING, LifeState.STOPPED, LifeState.DOWN}
"""States in which a replica is on its way, or can be ordered to come."""


class RouteTarget(NamedTuple):
    """Engine that requests may go to."""

    tenant: str
    device: str
    socket: str
    """Path at which its server listens."""
    state: LifeState = LifeState.READY


class Replica(NamedTuple):
    """A target of requests, and its load."""

    target: RouteTarget
    in_flight: int = 0
    """Requests that were passed on to it, or wait for it, and have not ended."""
    rate: float = 0.0
    """Requests a second that it ends when it is busy; 0 while that is unknown."""
    comes_s: float = 0.0
    """Seconds until it is ready, from where it is now."""
    yields: int = 0
    """Bytes that others on its device have to give for that."""
    open: bool = True
    """False once its route is closed: what runs there ends."""

    @property
    def device(self) -> str:
        return self.target.device


def known_rates(replicas: Sequence[Replica]) -> dict[str, float]:
    """Rate of each by its device; the mean of the others where it is unknown, or 1."""
    known = [each.rate for each in replicas if each.rate > 0]
    mean = sum(known) / len(known) if known else 1.0
    return {each.device: each.rate or mean for each in replicas}
