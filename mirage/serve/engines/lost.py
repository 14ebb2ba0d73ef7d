"""Watch over one engine for requests that its API server and its core have lost."""

from __future__ import annotations

from collections.abc import Callable

from mirage.control.lost_requests import LostRequests
from mirage.processes.proc_stat import proc_stat
from mirage.serve.health.owed_answers import OwedAnswers, OwedWait

ANSWERS_S = 3.0
"""Seconds without an answer to the probe after which it is unknown if the API server works."""
COMPUTES = 0.05
"""Fraction of one processor's time above which an API server counts as working; it may have to
share the processors.
"""


class LostWatch:
    """Watch over an engine while it serves; `pid` is its API server."""

    def __init__(
        self,
        answers: OwedAnswers,
        patience_s: float,
        pid: int,
        running: Callable[[], float],
        had_requests: Callable[[], float],
    ) -> None:
        """A request may wait for `patience_s` seconds before it can count as lost.

        `running` returns the seconds for which this server has run.
        `had_requests` returns the value of `running` at which the core last had a request.
        """
        self._answers, self._running, self._had_requests = answers, running, had_requests
        self._requests = LostRequests[OwedWait](patience_s)
        self._pid, self._cpu_s = pid, 0.0
        self._looked = self._worked = running()

    def look(self, silent_s: float) -> int:
        """Give up the requests that are lost, and return their number.

        `silent_s` is the number of seconds since the API server's last answer to the probe.
        """
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
        """Reason to restart the engine, since it loses requests; empty if there is none."""
        if not self._requests.estranged:
            return ""
        return f"{self._requests.lost} requests were lost between its API server and its core"

    def _computed(self, seconds: float) -> bool:
        """True if the API server has computed in the last `seconds`, or if that cannot be read."""
        if (stat := proc_stat(self._pid)) is None:
            return True
        before, self._cpu_s = self._cpu_s, stat.cpu_s
        return stat.cpu_s - before > COMPUTES * seconds
