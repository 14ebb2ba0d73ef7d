"""The end of a process that may be another one's child, by its pidfd."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
from pathlib import Path
from typing import TypeVar

INFO = struct.Struct("=QQ11Ii")
"""The kernel's ``struct pidfd_info``: a mask, a cgroup, eleven ids, the status as of waitpid."""
GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11
"""``PIDFD_GET_INFO``."""
WITH_EXIT = 1 << 3
"""``PIDFD_INFO_EXIT``: Linux 6.15 keeps the status for whoever holds a pidfd."""
ENDED = "ZX"
STATUS = 49
"""Field of /proc/PID/stat behind the name: the status as of waitpid, of a process that ended."""


T = TypeVar("T")


def exit_status(pid: int, pidfd: int, unknown: T) -> int | T:
    """Exit code or minus a signal of process `pid`, once it has ended; `unknown` if nobody tells.

    Whether its parent has reaped it does not matter, but before Linux 6.15.
    """
    for status in (_of_zombie(pid, pidfd), _of_reaped(pidfd)):
        if status is not None:
            return os.waitstatus_to_exitcode(status)
    return unknown


def _of_zombie(pid: int, pidfd: int) -> int | None:
    """Status that a parent would be told; None if it has been told, or the process lives."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        signal.pidfd_send_signal(pidfd, 0)  # so the number was not another one's by then
    except OSError:
        return None
    fields = words.rpartition(")")[2].split()
    return int(fields[STATUS]) if fields[0] in ENDED else None


def _of_reaped(pidfd: int) -> int | None:
    buffer = bytearray(INFO.size)
    struct.pack_into("=Q", buffer, 0, WITH_EXIT)
    try:
        fcntl.ioctl(pidfd, GET_INFO, buffer)
    except OSError:
        return None
    mask, *_, status = INFO.unpack(buffer)
    return int(status) if mask & WITH_EXIT else None


class ProcessEnd:
    """Waits for the end of process `pid`, of which the caller knows that it has not been reaped.

    Raises `OSError` if there is no such process. `close` lets go of the descriptor.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None
        self._descriptor = os.pidfd_open(pid)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_end)

    async def wait(self) -> None:
        """Wait until the process has ended: its memory and its files are gone."""
        await asyncio.shield(self._ended)

    def status(self) -> int | None:
        """Exit code or minus a signal, once the process has ended; None if it cannot be read."""
        if self._status is None:
            self._status = exit_status(self.pid, self._descriptor, None)
        return self._status

    def kill(self) -> None:
        """SIGKILL, for no other process; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the process: calls that wait return. Idempotent."""
        if self._descriptor >= 0:
            self._on_end()
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self.status()  # at once: it may not have been reaped yet
        if not self._ended.done():
            self._ended.set_result(None)
