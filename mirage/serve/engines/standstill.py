"""Standstill of a start: its processes are stopped, or compute nothing."""

from __future__ import annotations

from mirage.processes.proc_stat import STOPPED, ProcStat, proc_stat
from mirage.processes.reaper import members_of

COMPUTES = 0.02
"""Fraction of one processor's time above which a start makes progress."""


class Standstill:
    """Processes of a start, watched for progress. Methods raise `OSError` if no file can be
    opened.
    """

    def __init__(self, group: int, patience_s: float, now: float) -> None:
        """`group` is the process group; `now` is in seconds of the clock that all methods use.

        A start that computes nothing for `patience_s` seconds stands still.
        """
        self._group, self._patience_s = group, patience_s
        self._moved = self._looked = self._ran = now
        self._cpu_s = 0.0

    def look(self, now: float) -> str:
        """Reason why the start stands still; empty if it does not. Call it every few seconds."""
        stats = {pid: stat for pid in members_of(self._group) if (stat := proc_stat(pid))}
        self._learn(now, sum(stat.cpu_s + stat.waited_s for stat in stats.values()))
        if stopped := self._stopped(stats):
            return f"{stopped} is stopped, as by SIGSTOP or a debugger: let it run"
        if (still := now - self._moved) >= self._patience_s:
            return f"its processes have computed nothing for {still:.0f} s: see its log"
        return ""

    def stopped_too_long(self, now: float) -> str:
        """Reason to end the start: a process was found stopped at each look for `patience_s`
        seconds.

        Empty if there is none.
        """
        stats = {pid: stat for pid in members_of(self._group) if (stat := proc_stat(pid))}
        stopped = self._stopped(stats)
        if not stopped:
            self._ran = now
        return f"{stopped} is stopped" if now - self._ran >= self._patience_s else ""

    def _learn(self, now: float, cpu_s: float) -> None:
        if abs(cpu_s - self._cpu_s) > COMPUTES * (now - self._looked):  # less: some have ended
            self._moved = now
        self._looked, self._cpu_s = now, cpu_s

    def _stopped(self, stats: dict[int, ProcStat]) -> str:
        pid = next((pid for pid, stat in stats.items() if stat.state in STOPPED), None)
        if pid is None:
            return ""
        return f"its {'API server' if pid == self._group else 'engine core'} (process {pid})"
