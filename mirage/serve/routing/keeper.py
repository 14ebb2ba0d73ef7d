"""The router's process, as the supervisor has it: started, ended if it hangs, started again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mirage.processes.pidfd import ProcessEnd
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.routing.desk import RouterDesk

log = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-m", "mirage.serve.router.process")
END_S = 5.0
"""Seconds for a router that was told to end."""
PAUSE_S = 1.0
"""Before another start of one that could not be started."""


class RouterKeeper:
    """One router at a time, that listens on `sockets`, which stay open between two of them.

    `keep` has to run after `start`, and `stop` to follow.
    """

    def __init__(
        self,
        desk: RouterDesk,
        reaper: ReaperClient,
        line: Path,
        sockets: Sequence[socket.socket],
    ) -> None:
        """`line` is the path of the desk's socket."""
        self._desk, self._reaper, self._line, self._sockets = desk, reaper, line, sockets
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it connects to the desk. Raises `OSError`."""
        descriptors = [one.fileno() for one in self._sockets]
        level = logging.getLogger("mirage").getEffectiveLevel()
        words = [*PROGRAM, str(self._line), str(level), *map(str, descriptors)]
        self._process = subprocess.Popen(
            words, pass_fds=descriptors, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._reaper.began(self._process.pid)

    async def keep(self) -> None:
        """Start another one whenever it ends or hangs. Never returns."""
        while True:
            if self._process is not None:
                await self._ends(self._process)
                await self._end(0.0)
            try:
                self.start()
            except OSError as error:
                log.error("no router can be started (%s): tried again in %g s", error, PAUSE_S)
                await asyncio.sleep(PAUSE_S)

    async def stop(self) -> None:
        """Have it end, or end it. Idempotent."""
        self._desk.end()
        await self._end(END_S)
        await self._desk.left()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _ends(self, process: subprocess.Popen[bytes]) -> None:
        """Return once it has ended, or hangs."""
        end = ProcessEnd(process.pid)
        work = [asyncio.ensure_future(end.wait()), asyncio.ensure_future(self._desk.hung())]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in work:
                task.cancel()
            end.close()

    async def _end(self, patience_s: float) -> None:
        """Nothing of it is left then."""
        process, self._process = self._process, None
        if process is None:
            return
        await asyncio.to_thread(_ended, process, patience_s)
        self._reaper.over(process.pid)


def _ended(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait so long for its end, then end it, with the router that it has forked."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with contextlib.suppress(ChildProcessError):
        while True:  # what was forked is this process's child now
            os.waitpid(-process.pid, 0)
