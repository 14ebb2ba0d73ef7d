"""Recent kills of the kernel's OOM killer.

The kernel counts the processes of each control group that it has killed because memory ran out, in
the group or on the whole machine (``memory.events``, of version 1 ``memory.oom_control``). It does
not tell an unprivileged process which ones. ``/proc/vmstat`` counts those of all groups.
"""

from __future__ import annotations

from pathlib import Path

from vmm.host_memory import PROC, limit_files

COUNTERS = {"memory.max": "memory.events", "memory.limit_in_bytes": "memory.oom_control"}
"""File with a control group's count, by the name of the file with its limit."""


class OomKills:
    """Counter of the processes that the kernel has killed recently because memory ran out: those of
    the control groups in which an engine's processes are, or of the whole machine if these groups
    are not known or do not count.
    """

    def __init__(self, proc: Path = PROC) -> None:
        """`proc` is the folder of the proc file system."""
        self._proc, self._machine = proc, proc / "vmstat"
        self._groups: dict[int, str] = {}
        """Text about the control groups of each process that is followed, as last read."""
        self._last = {self._machine: _count(self._machine) or 0}
        self._before = dict(self._last)

    def follow(self, pid: int) -> None:
        """Count the kills in the control group of this process, and in one that it moves to."""
        self._groups.setdefault(pid, "")
        self._follow_groups()

    def look(self) -> None:
        """Start a new interval; `lately` counts from the last but one call on."""
        self._follow_groups()
        self._before, self._last = self._last, {file: _count(file) or 0 for file in self._last}

    def lately(self) -> int:
        """Processes killed since the last but one `look`; 0 if the kernel does not tell."""
        groups = self._last.keys() - {self._machine}
        now = {file: _count(file) or 0 for file in groups or self._last}
        return sum(max(0, count - self._before[file]) for file, count in now.items())

    def _follow_groups(self) -> None:
        for pid, before in self._groups.items():
            try:
                self._groups[pid] = groups = (self._proc / str(pid) / "cgroup").read_text()
            except OSError:  # it has ended
                continue
            file = self._counter_of(groups) if groups != before else None
            if file is not None and file not in self._last:
                self._before[file] = self._last[file] = _count(file) or 0

    def _counter_of(self, groups: str) -> Path | None:
        """File with the kills in a process's control group, or in one above it that counts; None if
        none does. `groups` is the text about the process.
        """
        try:
            mounts = (self._proc / "self" / "mountinfo").read_text()
        except OSError:
            return None
        files = (file.with_name(COUNTERS[file.name]) for file in limit_files(groups, mounts))
        return next((file for file in files if _count(file) is not None), None)


def _count(file: Path) -> int | None:
    """Number after ``oom_kill`` in a file; None if it cannot be read or has none."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
