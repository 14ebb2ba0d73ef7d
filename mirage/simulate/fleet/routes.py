"""Routes of requests: a replica is chosen by the requests that are under way at each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mirage.simulate.batch import SimulatedRequest


class ReplicaLoad(NamedTuple):
    """Requests under way at one replica of a model."""

    device: str
    in_flight: int


Route = Callable[[SimulatedRequest, Sequence[ReplicaLoad]], int]
"""Index of the replica that a request goes to. There is at least one; they are in the order of
their devices' names."""


def fewest(request: SimulatedRequest, replicas: Sequence[ReplicaLoad]) -> int:
    """The one with the fewest requests under way, of equals the first."""
    return min(range(len(replicas)), key=lambda index: replicas[index].in_flight)
