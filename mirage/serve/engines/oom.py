"""Recent kills of the kernel's OOM killer.

The kernel counts the processes that it killed for want of memory, of the whole machine or of one
cgroup, in ``/proc/vmstat``. It does not tell a process that is not privileged which ones.
"""

from __future__ import annotations

from pathlib import Path

VMSTAT = Path("/proc/vmstat")


class OomKills:
    """Count of processes that the kernel has killed lately for want of memory."""

    def __init__(self, vmstat: Path = VMSTAT) -> None:
        self._vmstat = vmstat
        self._before = self._last = self._count()

    def look(self) -> None:
        """Forget kills before the last look."""
        self._before, self._last = self._last, self._count()

    def lately(self) -> int:
        """Processes killed since the look before the last one; 0 where the kernel does not say."""
        return max(0, self._count() - self._before)

    def _count(self) -> int:
        try:
            lines = self._vmstat.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
