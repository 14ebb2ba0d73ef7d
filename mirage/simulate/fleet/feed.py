"""Requests of a model for its only replica: no router is asked about them."""

from __future__ import annotations

from collections.abc import Iterator

from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.roofline import NEVER


class Feed:
    """A model's requests in order, told in parts."""

    def __init__(self, requests: Iterator[SimulatedRequest]) -> None:
        self._requests = requests
        self._next = next(requests, None)

    @property
    def next_arrival(self) -> int:
        """Arrival of the first that was not told, in picoseconds; `NEVER` without one."""
        return NEVER if self._next is None else self._next.arrival

    def before(self, time: int) -> Iterator[SimulatedRequest]:
        """Requests that arrive before `time`, as far as they were not told."""
        while (request := self._next) is not None and request.arrival < time:
            self._next = next(self._requests, None)
            yield request
