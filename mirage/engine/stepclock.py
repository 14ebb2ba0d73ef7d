"""Compute time of steps on a device that runs behind the thread that enqueues them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mirage.control.compute_time import MOST_PENDING

Mark = Any
"""Timed event like torch's: `record` on the current stream, `query`, `elapsed_time` in ms."""
Pair = tuple[Mark, Mark]


@dataclass
class _Step:
    whole: Pair
    stalls: list[Pair] = field(default_factory=list)


class EventClock:
    """Clock that marks the start and the end of steps and waits; reads the marks once the device
    has passed them.

    Nothing here waits for the device: a step's time is known one or two steps later.
    """

    def __init__(self, make: Callable[[], Mark]) -> None:
        self._make = make
        self.stall_s = 0.0
        """Seconds of waits in all steps whose times are known."""
        self._stalls: list[Pair] | None = None
        self._pending: deque[_Step] = deque(maxlen=MOST_PENDING)

    @contextmanager
    def timed(self, stepped: Callable[[float], None]) -> Iterator[None]:
        """Context around one step. Calls `stepped` with the compute seconds of each step that has
        ended by then."""
        stalls: list[Pair] = []
        self._stalls = stalls
        start = self._now()
        yield
        self._stalls = None
        self._pending.append(_Step((start, self._now()), stalls))
        while self._pending and self._pending[0].whole[1].query():
            step = self._pending.popleft()
            stalled = sum(map(_seconds, step.stalls))
            self.stall_s += stalled
            stepped(_seconds(step.whole) - stalled)

    @contextmanager
    def stall(self) -> Iterator[None]:
        """Context around a wait inside a step; outside of a step it is not timed."""
        if self._stalls is None:
            yield
            return
        start = self._now()
        yield
        self._stalls.append((start, self._now()))

    def _now(self) -> Mark:
        mark = self._make()
        mark.record()
        return mark


def _seconds(pair: Pair) -> float:
    return pair[0].elapsed_time(pair[1]) / 1000
