"""Marks by which a process is known again: its number alone may be another one's by then.

The time at which it started is counted from the boot, so the boot has to be the same as well.
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
"""States of a process that has ended."""
STARTED = 19
"""Field of /proc/PID/stat behind the name: ticks from the boot to its start."""


class ProcessMark(msgspec.Struct, frozen=True):
    """One process of this boot: its number, and the ticks from the boot to its start."""

    pid: int
    start: int


def boot_id() -> str:
    """Name of this boot of the machine."""
    return BOOT.read_text().strip()


def mark_of(pid: int) -> ProcessMark | None:
    """Mark of a process that lives; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in DEAD else ProcessMark(pid, int(fields[STARTED]))


class MarkedProcess:
    """A process that lives and is no child of this one, held by its pidfd. See `found`."""

    def __init__(self, mark: ProcessMark, descriptor: int) -> None:
        """Takes over the descriptor."""
        self.pid = mark.pid
        self._descriptor = descriptor

    @classmethod
    def found(cls, mark: ProcessMark) -> MarkedProcess | None:
        """The process of that mark; None if it has ended."""
        try:
            descriptor = os.pidfd_open(mark.pid)
        except OSError:
            return None
        if mark_of(mark.pid) == mark:  # and so it is what the descriptor has
            return cls(mark, descriptor)
        os.close(descriptor)
        return None

    def lives(self) -> bool:
        """False once it has ended."""
        return not select.select([self._descriptor], [], [], 0)[0]

    def poll(self) -> int | None:
        """Exit status as a child's; `UNKNOWN_STATUS` if it cannot be read."""
        return None if self.lives() else self._exit_status()

    def wait(self, limit_s: float | None = None) -> int:
        """Wait for its end; the exit status. Raises `TimeoutError`."""
        if not select.select([self._descriptor], [], [], limit_s)[0]:
            raise TimeoutError(f"process {self.pid} has not ended in {limit_s:g} s")
        return self._exit_status()

    def _exit_status(self) -> int:
        return exit_status(self.pid, self._descriptor, UNKNOWN_STATUS)

    def send_signal(self, sig: int, /) -> None:
        """Nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, sig)

    def close(self) -> None:
        """Let go of it. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


UNKNOWN_STATUS = 1 << 16
"""Exit status of which nobody tells: no process has such a one."""


def gone(pid: int, limit_s: float) -> bool:
    """True once no process `pid` runs; False after `limit_s` seconds."""
    until = time.monotonic() + limit_s
    while mark_of(pid) is not None:
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)
    return True
