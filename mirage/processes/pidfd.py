"""The end of a process that may be another one's child, by its pidfd."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
from typing import TypeVar

INFO = struct.Struct("=QQ11Ii")
"""The kernel's ``struct pidfd_info``: a mask, a cgroup, eleven ids, the status as of waitpid."""
GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11
"""``PIDFD_GET_INFO``."""
WITH_EXIT = 1 << 3
"""``PIDFD_INFO_EXIT``: Linux 6.15 keeps the status for whoever holds a pidfd."""


T = TypeVar("T")


def exit_status(pidfd: int, unknown: T) -> int | T:
    """Exit code or minus a signal of a process that has ended; `unknown` if the kernel has none."""
    buffer = bytearray(INFO.size)
    struct.pack_into("=Q", buffer, 0, WITH_EXIT)
    try:
        fcntl.ioctl(pidfd, GET_INFO, buffer)
    except OSError:
        return unknown
    mask, *_, status = INFO.unpack(buffer)
    return os.waitstatus_to_exitcode(status) if mask & WITH_EXIT else unknown


class ProcessEnd:
    """Waits for the end of process `pid`, of which the caller knows that it has not been reaped.

    Raises `OSError` if there is no such process. `close` lets go of the descriptor.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_end)

    async def wait(self) -> None:
        """Wait until the process has ended: its memory and its files are gone."""
        await asyncio.shield(self._ended)

    def status(self) -> int | None:
        """Its exit code or minus a signal, once it has ended; None where the kernel keeps none."""
        return exit_status(self._descriptor, None)

    def kill(self) -> None:
        """SIGKILL, for no other process; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Idempotent. Whoever still waits goes on."""
        if self._descriptor >= 0:
            self._on_end()
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        if not self._ended.done():
            self._ended.set_result(None)
