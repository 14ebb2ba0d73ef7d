"""Requests of the last windows of time, as they came to the router. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage.control.placement.facts import LoadWindow, ModelLoad
from mirage.simulate.batch import SimulatedRequest

SentRow = tuple[int, int, int]
"""Arrival in picoseconds since the window's begin, tokens of the prompt, tokens of the output."""


@dataclass(frozen=True, eq=False)
class WindowRows:
    """Requests of all models in one window."""

    number: int
    """Position among all windows of the run, from 0; windows before the run have negative ones."""
    seconds: float
    rows: Mapping[str, Sequence[SentRow]]

    @property
    def load(self) -> LoadWindow:
        """Mean load of each model that got requests in this window."""
        each = {name: mean_load(rows, self.seconds) for name, rows in self.rows.items() if rows}
        return LoadWindow(self.seconds, each)


def mean_load(rows: Sequence[SentRow], seconds: float) -> ModelLoad:
    """Mean load of one model by its requests in `seconds`; `rows` must not be empty."""
    _, tokens_in, tokens_out = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return ModelLoad(len(rows) / seconds, tokens_in, tokens_out)


class LoadLog:
    """Log of requests in windows of `window_ps` picoseconds (`seconds`); the last `most` complete
    ones are kept.
    """

    def __init__(self, window_ps: int, seconds: float, most: int) -> None:
        self._window_ps, self._seconds, self._most = window_ps, seconds, most
        self._windows: dict[int, dict[str, list[SentRow]]] = {}

    def came(self, tenant: str, request: SimulatedRequest) -> None:
        """Add a request to the load of its tenant. A request from before the run has a negative
        arrival.
        """
        number, since = divmod(request.arrival, self._window_ps)
        rows = self._windows.setdefault(number, {}).setdefault(tenant, [])
        rows.append((since, request.prompt, request.output))

    def whole(self, now: int) -> list[WindowRows]:
        """The last complete windows before `now`, `most` at most, beginning with the first of which
        requests are known. Older windows are deleted.
        """
        end = now // self._window_ps
        first = max(end - self._most, min(self._windows, default=end))
        for old in [number for number in self._windows if number < first]:
            del self._windows[old]
        return [
            WindowRows(number, self._seconds, self._windows.get(number, {}))
            for number in range(first, end)
        ]
