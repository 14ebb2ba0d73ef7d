"""Detection of an engine's start without progress: one of its processes is suspended, or all of
them together use almost no processor time."""

from __future__ import annotations

from mirage.processes.proc_stat import STOPPED, ProcStat, proc_stat
from mirage.processes.reaper import members_of

COMPUTES = 0.02
"""Fraction of one processor's time above which a start makes progress."""


class Standstill:
    """Detector of an engine's start that makes no progress: one of its processes is suspended (as
    by SIGSTOP), or all of them together compute nothing. They compute nothing if the time that they
    run or wait for a processor is at most the fraction `COMPUTES` of one processor's. Methods raise
    `OSError` if no file can be opened.
    """

    def __init__(self, group: int, patience_s: float, now: float) -> None:
        """`group` is the process group of the start; `now` is in seconds of the clock that all
        methods use.

        A start whose processes compute nothing for `patience_s` seconds stands still.
        """
        self._group, self._patience_s = group, patience_s
        self._moved = self._looked = self._ran = now
        self._cpu_s = 0.0

    def look(self, now: float) -> str:
        """Reason why the start makes no progress; empty if it makes some. Call it every few
        seconds."""
        stats = {pid: stat for pid in members_of(self._group) if (stat := proc_stat(pid))}
        self._learn(now, sum(stat.cpu_s + stat.waited_s for stat in stats.values()))
        if stopped := self._stopped(stats):
            return f"{stopped} is stopped, as by SIGSTOP or a debugger: let it run"
        if (still := now - self._moved) >= self._patience_s:
            return f"its processes have computed nothing for {still:.0f} s: see its log"
        return ""

    def stopped_too_long(self, now: float) -> str:
        """Reason to end the start: for `patience_s` seconds each call has found a suspended
        process. Empty if that is not so.
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
