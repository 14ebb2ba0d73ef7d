"""Rates of engines over the last seconds, from the counters in their reports. Pure: no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from mirage.protocol import Report
from mirage.serve.overview.forms import EngineRates

STEP_S = 1.0
"""Least seconds between two readings that are kept."""
KEPT = 11


class CounterReading(NamedTuple):
    """Counters of one engine at one time, each since the engine's start: requests that began to
    run, tokens computed, and prompt tokens among them."""

    started: int
    tokens: int
    prefill_tokens: int


class EnginePace:
    """Counters of all engines at the last `KEPT` readings, from which rates are computed."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, dict[str, CounterReading]]] = deque(maxlen=KEPT)

    def look(self, t: float, reports: Mapping[str, Report]) -> None:
        """Keep a reading of these reports at time `t`.

        It is dropped if the last kept one is less than `STEP_S` seconds older.
        """
        if self._readings and t < self._readings[-1][0] + STEP_S:
            return
        read = {
            name: CounterReading(one.started, one.tokens, one.prefill_tokens)
            for name, one in reports.items()
        }
        self._readings.append((t, read))

    def rates(self, tenant: str) -> EngineRates | None:
        """Rates of a tenant's present engine between its oldest and its newest reading; None if it
        has fewer than two.

        Counters that have fallen show that a reading is of an earlier engine.
        """
        newest: tuple[float, CounterReading] | None = None
        oldest: tuple[float, CounterReading] | None = None
        for t, readings in reversed(self._readings):
            one = readings.get(tenant)
            if one is None or (oldest and any(a > b for a, b in zip(one, oldest[1], strict=True))):
                break
            oldest = t, one
            newest = newest or oldest
        if newest is None or oldest is None or newest is oldest:
            return None
        seconds = newest[0] - oldest[0]
        started, tokens, prompts = (
            (after - before) / seconds for after, before in zip(newest[1], oldest[1], strict=True)
        )
        return EngineRates(started, max(0.0, tokens - prompts), prompts)
