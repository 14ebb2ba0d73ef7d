"""Standstill of a start: its processes are stopped, or compute nothing."""

from __future__ import annotations

from mirage.processes.proc_stat import STOPPED, ProcStat, proc_stat
from mirage.processes.reaper import members_of

COMPUTES = 0.02
"""The part of one processor's time by which a start goes on."""


class Standstill:
    """Processes of a start, watched for progress. Raises `OSError` if no file can be opened."""

    def __init__(self, group: int, patience_s: float, now: float) -> None:
        """A start that computes nothing for `patience_s` stands still; `now` in seconds."""
        self._group, self._patience_s = group, patience_s
        self._moved = self._looked = self._ran = now
        self._cpu_s = 0.0

    def look(self, now: float) -> str:
        """Reason why a start stands still; empty if nothing is known. Call it every few seconds."""
        stats = {pid: stat for pid in members_of(self._group) if (stat := proc_stat(pid))}
        self._learn(now, sum(stat.cpu_s + stat.waited_s for stat in stats.values()))
        if stopped := self._stopped(stats):
            return f"{stopped} is stopped, as by SIGSTOP or a debugger: let it run"
        if (still := now - self._moved) >= self._patience_s:
            return f"its processes have computed nothing for {still:.0f} s: see its log"
        return ""

    def stopped_too_long(self, now: float) -> str:
        """Reason to end a start: a process of it is stopped, and was at each look of a while."""
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
