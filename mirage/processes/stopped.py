"""Processes that were stopped, as by SIGSTOP, and are not continued: they are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from functools import partial
from math import ceil

from mirage.processes.marks import MarkedProcess
from mirage.processes.proc_stat import STOPPED, proc_stat

TICK_S = 0.5
"""Seconds between two looks at a process; a pause of this process counts for no more."""


def end_if_stopped(pid: int, patience_s: float) -> None:
    """Wait until child `pid` has ended; kill it once it has been stopped for `patience_s` seconds.

    Seconds count only while this process runs: after a pause of both the child has time to be
    continued. The child is not reaped here. Returns immediately if another thread has reaped it.
    """
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        while _is_stopped(pid):
            if _stays_stopped(pid, patience_s):
                os.kill(pid, signal.SIGKILL)


def end_adopted_if_stopped(process: MarkedProcess, patience_s: float) -> None:
    """Wait until a process, no child of this one, has ended; kill it if it stays stopped.

    It is looked at twice a second, and killed once it has been stopped for `patience_s` seconds.
    """
    looks = 0
    while process.lives():
        told = proc_stat(process.pid)
        looks = looks + 1 if told is not None and told.state in STOPPED else 0
        if looks > ceil(patience_s / TICK_S):
            process.send_signal(signal.SIGKILL)
        time.sleep(TICK_S)


def watch_for_stops(process: int | MarkedProcess, patience_s: float) -> None:
    """Run `end_if_stopped` for a child's id, else `end_adopted_if_stopped`, in a thread of its
    own.
    """
    if isinstance(process, int):
        pid, work = process, partial(end_if_stopped, process, patience_s)
    else:
        pid, work = process.pid, partial(end_adopted_if_stopped, process, patience_s)
    threading.Thread(target=work, name=f"mirage-watch-{pid}", daemon=True).start()


def _stays_stopped(pid: int, patience_s: float) -> bool:
    """True if the process is found stopped at each look during `patience_s` seconds."""
    for _ in range(ceil(patience_s / TICK_S)):
        time.sleep(min(TICK_S, patience_s))
        if not _is_stopped(pid, os.WNOHANG):
            return False
    return _is_stopped(pid, os.WNOHANG)


def _is_stopped(pid: int, how: int = 0) -> bool:
    """True if child `pid` is stopped. Waits until it is stopped or has ended.

    With WNOHANG in `how` it does not wait.
    """
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT | how)
    return found is not None and found.si_code == os.CLD_STOPPED
