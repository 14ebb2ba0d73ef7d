"""Windows of a trace: some for the search, others that it does not see, for judging. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage.config import ConfigError
from mirage.workload.trace import TraceRequest

WINDOWS = 8
LARGEST_WINDOW = 200
"""Most requests of a window. For a short trace windows are made smaller, not fewer."""
LEAST_WINDOW = 10


@dataclass(frozen=True)
class Window:
    """Consecutive requests; arrivals count from the first one."""

    number: int
    begin_s: float
    """Begin of the window, in seconds of the trace."""
    end_s: float
    requests: tuple[TraceRequest, ...]


@dataclass(frozen=True)
class Cut:
    """Windows that do not overlap; every second one is held back."""

    searched: tuple[Window, ...]
    held_back: tuple[Window, ...]

    @property
    def judged(self) -> int:
        """Number of requests in all held-back windows."""
        return sum(len(window.requests) for window in self.held_back)


def cut(
    requests: Sequence[TraceRequest], largest: int = LARGEST_WINDOW, count: int = WINDOWS
) -> Cut:
    """`count` windows of at most `largest` requests, spread evenly over the whole trace. Raises
    `ConfigError` if it is too short."""
    total = len(requests)
    size = min(largest, total // count)
    if size < LEAST_WINDOW:
        raise ConfigError(
            f"the trace has {total} requests: {count * LEAST_WINDOW} are needed to search "
            "on some and to judge on others, name a longer one"
        )
    starts = [number * (total - size) // (count - 1) for number in range(count)]
    windows = [_window(number, requests[s : s + size]) for number, s in enumerate(starts)]
    return Cut(tuple(windows[0::2]), tuple(windows[1::2]))


def _window(number: int, requests: Sequence[TraceRequest]) -> Window:
    begin = requests[0].arrival_s
    moved = tuple(replace(r, arrival_s=r.arrival_s - begin) for r in requests)
    return Window(number, begin, requests[-1].arrival_s, moved)
