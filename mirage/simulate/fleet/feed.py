"""Requests of a model with one replica, which need no decision of a router."""

from __future__ import annotations

from collections.abc import Iterator

from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.roofline import NEVER


class Feed:
    """A model's requests in order of arrival, handed out in parts. Times are picoseconds."""

    def __init__(self, requests: Iterator[SimulatedRequest]) -> None:
        self._requests = requests
        self._next = next(requests, None)

    @property
    def next_arrival(self) -> int:
        """Arrival of the first request that was not handed out, in picoseconds; `NEVER` if there is
        none.
        """
        return NEVER if self._next is None else self._next.arrival

    def before(self, time: int) -> Iterator[SimulatedRequest]:
        """Hand out the requests that arrive before `time` and were not handed out yet."""
        while (request := self._next) is not None and request.arrival < time:
            self._next = next(self._requests, None)
            yield request
