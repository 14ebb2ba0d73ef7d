"""Conversation of an engine with the control server. Without a server it sends nothing."""

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
"""Least seconds between two reports that are not urgent."""


class Conversation:
    """Engine's side of its connection with the control server."""

    def __init__(self, agent: Agent | None, reports: EngineReports, turn: EngineTurn) -> None:
        self._agent, self._reports, self._turn = agent, reports, turn
        self._reported_s = 0.0
        """Time of the last report, in seconds of `time.monotonic`."""
        self._said_holding: bool | None = None
        self._newest: Allotment | None = None
        """Newest allotment that the engine has seen; None before the first."""
        self._serves = False
        """True once the first step has been computed."""

    def begin(
        self,
        tenant: str,
        shape: ModelShape,
        pulse: Callable[[], Pulse],
        unfinished: Callable[[], bool],
    ) -> None:
        """Introduce the engine to the control server, and listen to it.

        `pulse` returns the next pulse, and is called by the agent's writer thread. While
        `unfinished` is true and no message comes, the agent posts `Alive` itself, so that the
        engine goes on to move memory. See `Agent.start`.
        """
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
        """Revision of the newest allotment that was seen; 0 before the first."""
        return 0 if self._newest is None else self._newest.revision

    def obeyed(self, allotment: Allotment) -> None:
        """Note that the engine has seen an allotment."""
        if allotment.revision > self.revision:
            self._newest = allotment

    def _holdings(self) -> EngineHoldings | None:
        """Return the newest allotment with a report, for a new control server; None if the engine
        has seen no allotment or has not computed its first step."""
        if self._newest is None or not self._serves:
            return None
        return EngineHoldings(self._newest, self.report())

    def report(self) -> Report:
        """Return a report of the present state. Remember its `holds_turn` (True if a step may be
        running), so that `report_if_due` notices a change."""
        self._said_holding = self._turn.held
        return self._reports.make(revision=self.revision, holds_turn=self._said_holding)

    def report_now(self) -> None:
        """Send a report immediately, because something changed that the control server waits
        for."""
        if self._agent is not None:
            self._reported_s = time.monotonic()
            self._agent.send(self.report())

    def report_if_due(self, *, urgent: bool = False) -> None:
        """Send a report if the last one is `INTERVAL_S` seconds old, if it is `urgent`, or if the
        turn was taken up or yielded since."""
        urgent = urgent or self._turn.held != self._said_holding
        if urgent or time.monotonic() - self._reported_s >= INTERVAL_S:
            self.report_now()

    def stepped(self, free_bytes: int, total_bytes: int) -> None:
        """Note that the first step has been computed, and tell the control server, with the free
        and total bytes of the device."""
        self._serves = True
        if self._agent is not None:
            self._agent.send(Stepped(free_bytes, total_bytes))

    def end(self) -> None:
        """Close the connection. If an exception is being handled, it is reported first as the
        reason of the engine's end; otherwise nothing is sent."""
        if self._agent is not None:
            error = sys.exception()
            self._agent.close(error if isinstance(error, Exception) else None)
