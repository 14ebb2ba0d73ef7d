"""Recent kills of the kernel's OOM killer.

The kernel counts in ``/proc/vmstat`` the processes that it has killed because memory ran out, on
the whole machine or in one cgroup. It does not tell an unprivileged process which ones.
"""

from __future__ import annotations

from pathlib import Path

VMSTAT = Path("/proc/vmstat")


class OomKills:
    """Counter of the processes that the kernel has killed recently because memory ran out."""

    def __init__(self, vmstat: Path = VMSTAT) -> None:
        self._vmstat = vmstat
        self._before = self._last = self._count()

    def look(self) -> None:
        """Start a new interval; `lately` counts from the last but one call on."""
        self._before, self._last = self._last, self._count()

    def lately(self) -> int:
        """Processes killed since the last but one `look`; 0 if the kernel does not tell."""
        return max(0, self._count() - self._before)

    def _count(self) -> int:
        try:
            lines = self._vmstat.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
