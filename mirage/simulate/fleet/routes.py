"""Routes of requests: a replica is chosen by the requests that are under way at each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mirage.control.routes.replica import Replica, RouteTarget
from mirage.control.routes.routing import RouteAsk, Routes
from mirage.simulate.batch import SimulatedRequest


class ReplicaLoad(NamedTuple):
    """Requests under way at one replica of a model."""

    device: str
    in_flight: int


Route = Callable[[SimulatedRequest, Sequence[ReplicaLoad]], int]
"""Index of the replica that a request goes to. There is at least one; they are in the order of
their devices' names."""


class ServedRoutes:
    """The routes of `mirage serve`: a session or prefix stays where it is, all else by the wait.

    Sessions and prefixes are known where engines keep prefixes. How fast a replica is nobody knows
    here, so that waits are by the requests under way.
    """

    def __init__(self) -> None:
        self._routes = Routes()

    def __call__(self, request: SimulatedRequest, replicas: Sequence[ReplicaLoad]) -> int:
        ask = RouteAsk("", "", "" if request.prefix is None else request.prefix.beginning)
        each = [Replica(RouteTarget("", r.device, ""), r.in_flight) for r in replicas]
        chosen = self._routes.choose(ask, each, 0.0).replica
        assert chosen is not None, "of replicas that are ready one is chosen"
        return each.index(chosen)
