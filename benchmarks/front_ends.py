"""Simulated processes that read requests before an engine, on cores that engines need too. Pure.

A client, a router and each engine's API server take processor time to read requests and to pass
them on. Each is a process that wants one core while it has work. It divides its time evenly among
its requests, so requests that come together have been read at the same time. Every process that
wants a core gets an equal part of the cores, one core at most.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import ceil
from typing import Generic, TypeVar

T = TypeVar("T")

DONE = 0.1
"""Picoseconds of remaining work that count as none, because they come from rounding."""


@dataclass
class _Reading(Generic[T]):
    """Requests that one front end still has to read."""

    done: float = 0.0
    """Work in picoseconds that a request has got if it was there from the start."""
    ends: deque[tuple[float, T]] = field(default_factory=deque)
    """Requests in order of arrival, each with the value of `done` at which it has been read."""


class FrontEnds(Generic[T]):
    """Front ends by name; the requests of one are alike. Times in picoseconds.

    Two requests of 10 ps that come together have both been read after 20 ps; beside two engines
    that compute, on two cores, after 30 ps:

    >>> fronts = FrontEnds[str](cores=2)
    >>> for request in ("one", "other"):
    ...     fronts.take("chat", request, work_ps=10, now=100)
    >>> fronts.next_end()
    120
    >>> fronts.beside(2, now=100)
    >>> fronts.next_end(), fronts.through(now=130)
    (130, [('chat', 'one'), ('chat', 'other')])
    """

    def __init__(self, cores: int, others: float = 0.0) -> None:
        """`others` is the mean number of other processes that want a core."""
        self._cores, self._others = cores, others
        self._busy: defaultdict[str, _Reading[T]] = defaultdict(_Reading)
        self._engines, self._now = 0, 0

    @property
    def reading(self) -> int:
        """Number of front ends that want a core."""
        return len(self._busy)

    def beside(self, engines: int, now: int) -> None:
        """Set the number of engines that compute from now on."""
        self._go_on(now)
        self._engines = engines

    def take(self, name: str, request: T, work_ps: int, now: int) -> None:
        """Add a request to a front end, which needs `work_ps` of processor time to read it."""
        self._go_on(now)
        reading = self._busy[name]
        reading.ends.append((reading.done + work_ps, request))

    def next_end(self) -> int | None:
        """Time at which the next request has been read, if no request comes and no engine begins or
        ends to compute before; None if no request waits.
        """
        times = [
            self._now + ceil(max(0.0, r.ends[0][0] - r.done) * len(r.ends) / self._speed())
            for r in self._busy.values()
        ]
        return min(times, default=None)

    def through(self, now: int) -> list[tuple[str, T]]:
        """Front end and request of those that have been read by now; they are removed."""
        self._go_on(now)
        found = []
        for name, reading in list(self._busy.items()):
            while reading.ends and reading.ends[0][0] <= reading.done + DONE:
                found.append((name, reading.ends.popleft()[1]))
            if not reading.ends:
                del self._busy[name]
        return found

    def _speed(self) -> float:
        """Part of a core that each process which wants one gets."""
        return min(1.0, self._cores / (self.reading + self._engines + self._others))

    def _go_on(self, now: int) -> None:
        """Count the work done until now, at the speed that held since the last call."""
        if self._busy:
            each = (now - self._now) * self._speed()
            for reading in self._busy.values():
                reading.done += each / len(reading.ends)
        self._now = now
