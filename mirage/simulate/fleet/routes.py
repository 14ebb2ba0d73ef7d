"""Routes of requests: a replica is chosen by the number of requests in flight at each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mirage.control.routes.replica import Replica, RouteTarget
from mirage.control.routes.routing import RouteAsk, Routes
from mirage.simulate.batch import SimulatedRequest


class ReplicaLoad(NamedTuple):
    """Requests in flight at one replica of a model."""

    device: str
    in_flight: int


Route = Callable[[SimulatedRequest, Sequence[ReplicaLoad]], int]
"""Index of the replica that a request goes to. The replicas are sorted by the names of their
devices; there is at least one.
"""


class ServedRoutes:
    """The routes of `mirage serve`: a session or prefix stays at its replica, any other request
    goes by the wait.

    Prefixes are known if engines keep prefixes. The speed of a replica is not known here, so waits
    are estimated by the requests in flight.
    """

    def __init__(self) -> None:
        self._routes = Routes()

    def __call__(self, request: SimulatedRequest, replicas: Sequence[ReplicaLoad]) -> int:
        ask = RouteAsk("", "", "" if request.prefix is None else request.prefix.beginning)
        each = [Replica(RouteTarget("", r.device, ""), r.in_flight) for r in replicas]
        chosen = self._routes.choose(ask, each, 0.0).replica
        assert chosen is not None, "of replicas that are ready one is chosen"
        return each.index(chosen)
