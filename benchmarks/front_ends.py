"""Requests in the processes before an engine, on cores that engines' steps want as well. Pure.

A client, a router and each engine's API server read requests and hand them over: processor work.
Each is a process that wants one core as long as it has any, and does all that it has evenly, so
that requests that come together get through together. What wants a core gets as much of one as
everything else that does: all of it, or its part of the cores.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import ceil
from typing import Generic, TypeVar

T = TypeVar("T")

DONE = 0.1
"""Picoseconds of work that are none: what is left by rounding."""


@dataclass
class _Reading(Generic[T]):
    """Requests that one front end has to read."""

    done: float = 0.0
    """Work, in picoseconds, that each request has got which was there all the time."""
    ends: deque[tuple[float, T]] = field(default_factory=deque)
    """Requests in the order in which they came, with what `done` is when each is through."""


class FrontEnds(Generic[T]):
    """Front ends by name; the requests of one are alike. Times in picoseconds.

    Two requests of 10 ps that come together are through together, after 20; beside two engines
    that compute, on two cores, after 30:

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
        """`others`: processes besides that want a core, on average."""
        self._cores, self._others = cores, others
        self._busy: defaultdict[str, _Reading[T]] = defaultdict(_Reading)
        self._engines, self._now = 0, 0

    @property
    def reading(self) -> int:
        """Front ends that want a core."""
        return len(self._busy)

    def beside(self, engines: int, now: int) -> None:
        """Number of engines that compute from now on."""
        self._go_on(now)
        self._engines = engines

    def take(self, name: str, request: T, work_ps: int, now: int) -> None:
        """A request comes to a front end, which has so much work with it."""
        self._go_on(now)
        reading = self._busy[name]
        reading.ends.append((reading.done + work_ps, request))

    def next_end(self) -> int | None:
        """Time at which the next request is through, if nothing changes; None if none is there."""
        times = [
            self._now + ceil(max(0.0, r.ends[0][0] - r.done) * len(r.ends) / self._speed())
            for r in self._busy.values()
        ]
        return min(times, default=None)

    def through(self, now: int) -> list[tuple[str, T]]:
        """Front end and request of those that are through by now; they are not there any more."""
        self._go_on(now)
        found = []
        for name, reading in list(self._busy.items()):
            while reading.ends and reading.ends[0][0] <= reading.done + DONE:
                found.append((name, reading.ends.popleft()[1]))
            if not reading.ends:
                del self._busy[name]
        return found

    def _speed(self) -> float:
        """Part of a core that each process gets which wants one."""
        return min(1.0, self._cores / (self.reading + self._engines + self._others))

    def _go_on(self, now: int) -> None:
        """All work that is done by now, with who wanted cores up to now."""
        if self._busy:
            each = (now - self._now) * self._speed()
            for reading in self._busy.values():
                reading.done += each / len(reading.ends)
        self._now = now
