"""Marks that identify a process: its number alone may be another process's later.

The start is counted in ticks from the boot, so marks of two boots must not be compared.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path

import msgspec

from mirage.processes.pidfd import exit_status

BOOT = Path("/proc/sys/kernel/random/boot_id")
DEAD = "ZX"
"""States in /proc/PID/stat of a process that has ended."""
STARTED = 19
"""Index of the start, in ticks from the boot, in the fields of /proc/PID/stat behind the name."""


class ProcessMark(msgspec.Struct, frozen=True):
    """One process of this boot: its number, and the ticks from the boot to its start."""

    pid: int
    start: int


def boot_id() -> str:
    """Identifier of this boot of the machine, by the kernel."""
    return BOOT.read_text().strip()


def mark_of(pid: int) -> ProcessMark | None:
    """Mark of a process that lives; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in DEAD else ProcessMark(pid, int(fields[STARTED]))


class MarkedProcess:
    """Living process that is no child of this one, held by its pidfd. Made by `found`."""

    def __init__(self, mark: ProcessMark, descriptor: int) -> None:
        """`descriptor` is the pidfd, which this object closes."""
        self.pid = mark.pid
        self._descriptor = descriptor

    @classmethod
    def found(cls, mark: ProcessMark) -> MarkedProcess | None:
        """Open the process with this mark; None if it has ended."""
        try:
            descriptor = os.pidfd_open(mark.pid)
        except OSError:
            return None
        if mark_of(mark.pid) == mark:  # and so it is what the descriptor has
            return cls(mark, descriptor)
        os.close(descriptor)
        return None

    def lives(self) -> bool:
        """True until the process has ended."""
        return not select.select([self._descriptor], [], [], 0)[0]

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs, `UNKNOWN_STATUS` if it cannot be
        read.
        """
        return None if self.lives() else self._exit_status()

    def wait(self, limit_s: float | None = None) -> int:
        """Wait until the process has ended; return its exit status as `poll` does.

        Raises `TimeoutError` after `limit_s` seconds; None waits without limit.
        """
        if not select.select([self._descriptor], [], [], limit_s)[0]:
            raise TimeoutError(f"process {self.pid} has not ended in {limit_s:g} s")
        return self._exit_status()

    def _exit_status(self) -> int:
        return exit_status(self.pid, self._descriptor, UNKNOWN_STATUS)

    def send_signal(self, sig: int, /) -> None:
        """Send a signal; nothing happens if the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, sig)

    def close(self) -> None:
        """Close the pidfd. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


UNKNOWN_STATUS = 1 << 16
"""Exit status of a process whose real one cannot be read; no process has this one."""


def gone(pid: int, limit_s: float) -> bool:
    """Wait for the end of process `pid`: True once it has ended, False after `limit_s` seconds."""
    until = time.monotonic() + limit_s
    while mark_of(pid) is not None:
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)
    return True
