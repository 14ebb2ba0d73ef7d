"""Order in which the replicas of a model are tried for one request. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mirage.control.roster.states import LifeState
from mirage.control.routes.replica import RouteTarget
from mirage.serve.routed.table import REACHABLE


class RoutedReplica(NamedTuple):
    """One replica as the router knows it."""

    target: RouteTarget
    at_once: bool
    """True if a request would go on without waiting for its supervisor."""
    in_flight: int
    """Requests that wait for it or run there."""
    heard: bool = True
    """False while its device's server is away: it serves by what was last known."""


def in_order(replicas: Iterable[RoutedReplica]) -> list[RoutedReplica]:
    """The best first: awake before asleep before failed, then the one with the least in flight."""
    return sorted(replicas, key=_rank)


def _rank(replica: RoutedReplica) -> tuple[bool, bool, bool, bool, int]:
    state = replica.target.state
    return (
        state is LifeState.FAILED,
        not replica.at_once,
        state not in REACHABLE,
        not replica.heard,
        replica.in_flight,
    )
