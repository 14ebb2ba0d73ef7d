"""Routes of requests: which replica of a model a request goes to. Pure."""

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
"""Function that returns the index of the replica to which a request goes. The replicas are sorted
by the names of their devices; there is at least one.
"""


class ServedRoutes:
    """The routing of `mirage serve` for simulated replicas: a request with a session or prefix goes
    to the replica of that key unless it is overloaded, any other request to the replica with the
    shortest expected wait.

    Sessions and prefixes are known only if engines keep prefixes. All replicas count as equally
    fast, so the expected wait is the number of requests in flight.
    """

    def __init__(self) -> None:
        self._routes = Routes()

    def __call__(self, request: SimulatedRequest, replicas: Sequence[ReplicaLoad]) -> int:
        ask = RouteAsk("", "", "" if request.prefix is None else request.prefix.beginning)
        each = [Replica(RouteTarget("", r.device, ""), r.in_flight) for r in replicas]
        chosen = self._routes.choose(ask, each, 0.0).replica
        assert chosen is not None, "of replicas that are ready one is chosen"
        return each.index(chosen)
