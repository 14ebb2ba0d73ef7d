"""When an engine reports: at once for what others wait for, else at most every few ms."""

from __future__ import annotations

import time
from collections.abc import Callable

from mirage.engine.agent import Agent
from mirage.protocol import Report

INTERVAL_S = 0.02


class Reporter:
    """Sends `make()` to the control server; does nothing without one."""

    def __init__(self, make: Callable[[], Report], agent: Agent | None) -> None:
        self._make, self._agent = make, agent
        self._last = 0.0

    def now(self) -> None:
        """Report whatever changed."""
        if self._agent is not None:
            self._last = time.monotonic()
            self._agent.send(self._make())

    def maybe(self, *, urgent: bool = False) -> None:
        """Report if the last one is old enough, or if it is `urgent`."""
        if self._agent is not None and (urgent or time.monotonic() - self._last >= INTERVAL_S):
            self.now()
