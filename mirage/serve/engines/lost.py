"""Watch over one engine for requests that its API server and its core have lost."""

from __future__ import annotations

from collections.abc import Callable

from mirage.control.lost_requests import LostRequests
from mirage.processes.proc_stat import proc_stat
from mirage.serve.owed import OwedAnswers, OwedWait

ANSWERS_S = 3.0
"""Seconds without an answer to the probe after which nobody knows what an API server does."""
COMPUTES = 0.05
"""The part of one processor's time by which an API server works on something; others may want the
processors as well."""


class LostWatch:
    """Watch from the first request to the end of the engine whose API server is process `pid`."""

    def __init__(
        self,
        answers: OwedAnswers,
        patience_s: float,
        pid: int,
        running: Callable[[], float],
        had_requests: Callable[[], float],
    ) -> None:
        """`running` tells the seconds for which this server has run.

        `had_requests` tells at which of them the core last had a request.
        """
        self._answers, self._running, self._had_requests = answers, running, had_requests
        self._requests = LostRequests[OwedWait](patience_s)
        self._pid, self._cpu_s = pid, 0.0
        self._looked = self._worked = running()

    def look(self, silent_s: float) -> int:
        """Give up what is lost, and say how many were; the API server answered `silent_s` ago."""
        now = self._running()
        if silent_s > ANSWERS_S or self._computed(now - self._looked):
            self._worked = now
        self._looked = now
        worked = max(self._worked, self._had_requests())
        lost = self._requests.look(now, self._answers.waits, worked)
        self._answers.give_up(lost)
        return len(lost)

    @property
    def estrangement(self) -> str:
        """Reason to start the engine anew; empty if there is none."""
        if not self._requests.estranged:
            return ""
        return f"{self._requests.lost} requests were lost between its API server and its core"

    def _computed(self, seconds: float) -> bool:
        """True if the API server computed within the last `seconds` seconds."""
        if (stat := proc_stat(self._pid)) is None:
            return True
        before, self._cpu_s = self._cpu_s, stat.cpu_s
        return stat.cpu_s - before > COMPUTES * seconds
