"""State and processor time of a process, as the kernel tells them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STOPPED = "Tt"
"""States in /proc/PID/stat of a process that a signal or a debugger has stopped."""


class ProcStat(NamedTuple):
    """State and processor times of a process."""

    state: str
    """One letter, such as ``R`` for running."""
    cpu_s: float
    """Seconds of processor time that the process itself has used."""
    waited_s: float
    """Seconds of processor time of its children that have ended and that it has waited for."""


def proc_stat(pid: int) -> ProcStat | None:
    """Fields of ``/proc/PID/stat``; None if there is no process `pid`, or if it cannot be read."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = words.rpartition(")")[2].split()  # after the name, which may hold anything
    own, theirs = (sum(map(int, fields[at : at + 2])) / TICKS_PER_S for at in (11, 13))
    return ProcStat(fields[0], own, theirs)
