"""Conversation of an engine with the control server. Without one it says nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from mirage.engine.agent import Agent
from mirage.engine.reports import EngineReports
from mirage.engine.turn import EngineTurn
from mirage.protocol import (
    PROTOCOL_VERSION,
    Allotment,
    EngineHoldings,
    Hello,
    ModelShape,
    Pulse,
    Report,
    Stepped,
)

INTERVAL_S = 0.02
"""Least time between two reports that nobody waits for."""


class Conversation:
    """The engine's side of its connection with the control server."""

    def __init__(self, agent: Agent | None, reports: EngineReports, turn: EngineTurn) -> None:
        self._agent, self._reports, self._turn = agent, reports, turn
        self._reported_s = 0.0
        """Time of the last report, on `time.monotonic`."""
        self._said_holding: bool | None = None
        self._newest: Allotment | None = None
        """Allotment that was seen last."""
        self._serves = False
        """True once the first step is over."""

    def begin(
        self,
        tenant: str,
        shape: ModelShape,
        pulse: Callable[[], Pulse],
        unfinished: Callable[[], bool],
    ) -> None:
        """Introduce the engine and listen; `pulse` and `unfinished` as in `Agent.start`."""
        if self._agent is None:
            return

        def hello(holdings: EngineHoldings | None = None) -> Hello:
            held = self.report().held_bytes
            return Hello(PROTOCOL_VERSION, tenant, os.getpid(), shape, held, holdings)

        def again() -> Hello | None:
            self._turn.awaits_turn()
            holdings = self._holdings()
            return None if holdings is None else hello(holdings)

        self._agent.start(hello(), pulse, unfinished, self._turn.takes_turn, again)

    @property
    def revision(self) -> int:
        """Revision of the newest allotment that was obeyed; 0 before the first."""
        return 0 if self._newest is None else self._newest.revision

    def obeyed(self, allotment: Allotment) -> None:
        """An allotment was seen."""
        if allotment.revision > self.revision:
            self._newest = allotment

    def _holdings(self) -> EngineHoldings | None:
        """EngineHoldings from the last server; None of an engine that has not served."""
        if self._newest is None or not self._serves:
            return None
        return EngineHoldings(self._newest, self.report())

    def report(self) -> Report:
        """The present state, as if it were said."""
        self._said_holding = self._turn.held
        return self._reports.make(revision=self.revision, holds_turn=self._said_holding)

    def report_now(self) -> None:
        """Something changed that others wait for."""
        if self._agent is not None:
            self._reported_s = time.monotonic()
            self._agent.send(self.report())

    def report_if_due(self, *, urgent: bool = False) -> None:
        """Send a report if it is due or `urgent`, or if the turn was taken up or yielded."""
        urgent = urgent or self._turn.held != self._said_holding
        if urgent or time.monotonic() - self._reported_s >= INTERVAL_S:
            self.report_now()

    def stepped(self, free_bytes: int, total_bytes: int) -> None:
        """The first step is over; memory of the device in bytes."""
        self._serves = True
        if self._agent is not None:
            self._agent.send(Stepped(free_bytes, total_bytes))

    def end(self) -> None:
        """End it. An exception that is being handled, if there is one, is told as the reason."""
        if self._agent is not None:
            error = sys.exception()
            self._agent.close(error if isinstance(error, Exception) else None)
