"""End and exit status of a process, which may be a child of another one, by its pidfd."""

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
"""Number of the ioctl ``PIDFD_GET_INFO``."""
WITH_EXIT = 1 << 3
"""Flag ``PIDFD_INFO_EXIT``: since Linux 6.15 the exit status can be read from a pidfd."""
ENDED = "ZX"
STATUS = 49
"""Index of an ended process's status, as of waitpid, in the fields of /proc/PID/stat behind the
name.
"""


T = TypeVar("T")


def exit_status(pid: int, pidfd: int, unknown: T) -> int | T:
    """Exit code of process `pid`, or minus its signal, once it has ended; else `unknown`.

    Before Linux 6.15 it is also `unknown` once the parent has reaped the process.
    """
    for status in (_of_zombie(pid, pidfd), _of_reaped(pidfd)):
        if status is not None:
            return os.waitstatus_to_exitcode(status)
    return unknown


def _of_zombie(pid: int, pidfd: int) -> int | None:
    """Status of an ended process that its parent has not reaped, as of waitpid; else None."""
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
    """End of process `pid`, for which the running event loop waits. The caller must know that the
    process has not been reaped, since its number could be another one's by then.

    Raises `OSError` if there is no such process. `close` closes the pidfd.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None
        self._descriptor = os.pidfd_open(pid)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_end)

    async def wait(self) -> None:
        """Wait until the process has ended, with its memory freed, or until `close` is called."""
        await asyncio.shield(self._ended)

    def status(self) -> int | None:
        """Exit code or minus a signal, once the process has ended; None if it cannot be read."""
        if self._status is None:
            self._status = exit_status(self.pid, self._descriptor, None)
        return self._status

    def kill(self) -> None:
        """Send SIGKILL to this process and to no other; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Close the pidfd; calls of `wait` return. Idempotent."""
        if self._descriptor >= 0:
            self._on_end()
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self.status()  # at once: it may not have been reaped yet
        if not self._ended.done():
            self._ended.set_result(None)
