"""Requests of the last windows of time, as a router saw them come. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage.control.placement.facts import LoadWindow, ModelLoad
from mirage.simulate.batch import SimulatedRequest

SentRow = tuple[int, int, int]
"""Arrival in picoseconds since the window began, prompt and output tokens."""


@dataclass(frozen=True, eq=False)
class WindowRows:
    """Requests of all models in one window."""

    number: int
    """Position among all windows of the run; one before the run is negative."""
    seconds: float
    rows: Mapping[str, Sequence[SentRow]]

    @property
    def load(self) -> LoadWindow:
        """Means of each model that was asked for."""
        each = {name: mean_load(rows, self.seconds) for name, rows in self.rows.items() if rows}
        return LoadWindow(self.seconds, each)


def mean_load(rows: Sequence[SentRow], seconds: float) -> ModelLoad:
    """Means of one model's requests over a time; there has to be one."""
    _, tokens_in, tokens_out = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return ModelLoad(len(rows) / seconds, tokens_in, tokens_out)


class LoadLog:
    """Windows of `window_ps` picoseconds, of which the last `most` whole ones are told."""

    def __init__(self, window_ps: int, seconds: float, most: int) -> None:
        self._window_ps, self._seconds, self._most = window_ps, seconds, most
        self._windows: dict[int, dict[str, list[SentRow]]] = {}

    def came(self, tenant: str, request: SimulatedRequest) -> None:
        """A request came; one that came before the run has a negative arrival."""
        number, since = divmod(request.arrival, self._window_ps)
        rows = self._windows.setdefault(number, {}).setdefault(tenant, [])
        rows.append((since, request.prompt, request.output))

    def whole(self, now: int) -> list[WindowRows]:
        """The last whole windows before `now`, without those before anything was known."""
        end = now // self._window_ps
        first = max(end - self._most, min(self._windows, default=end))
        for old in [number for number in self._windows if number < first]:
            del self._windows[old]
        return [
            WindowRows(number, self._seconds, self._windows.get(number, {}))
            for number in range(first, end)
        ]
