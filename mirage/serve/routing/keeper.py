"""The router's process on the supervisor's side: started, and started again after each end; killed
first if it hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from mirage.processes.marks import MarkedProcess
from mirage.processes.pidfd import ProcessEnd
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.logs.logs import TO_STDERR, LogPlan
from mirage.serve.routing.desk import RouterDesk

log = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-m", "mirage.serve.router.process")
END_S = 5.0
"""Seconds for a router to end after it was told to."""
PAUSE_S = 1.0
"""Seconds before the next attempt after a router could not be started."""
IMPORT_S = 60.0
"""Seconds that the imports of a router may take beyond `hang_s` on a busy machine."""


RouterProcess = subprocess.Popen[bytes] | MarkedProcess
"""A child process, or one that another supervisor has started."""


class RouterKeeper:
    """Manager of a router process: it keeps the process running. Call `start` or `goes_on`, run
    `keep`, and call `stop` at the end."""

    def __init__(
        self,
        desk: RouterDesk,
        reaper: ReaperClient,
        line: Path,
        sockets: Callable[[], Awaitable[Sequence[socket.socket]]],
        began: Callable[[int], None],
        *,
        lease: bool = False,
        logs: LogPlan = TO_STDERR,
    ) -> None:
        """`line` is the path of the desk's socket.

        `sockets` returns the sockets that a router listens on, which stay open when it ends.
        `began` is called with the process id of each router that is started. With `lease` a router
        may outlive this process. `logs` has the places and form of its log lines.
        """
        self._desk, self._reaper, self._line, self._sockets = desk, reaper, line, sockets
        self._began, self._lease, self._logs = began, lease, logs
        self._process: RouterProcess | None = None

    def goes_on(self, process: MarkedProcess) -> None:
        """Take over the router process that another supervisor has started; the router connects to
        the desk by itself.
        """
        self._process = process
        self._reaper.began(process.pid)

    async def start(self) -> None:
        """Start a router, which then connects to the desk. Raises `OSError` if it cannot be
        started, or its address cannot be used.
        """
        descriptors = [one.fileno() for one in await self._sockets()]
        level = logging.getLogger("mirage").getEffectiveLevel()
        words = [*PROGRAM, str(self._line), str(level), *map(str, descriptors)]
        words += self._logs.words()
        if self._lease:
            words.append("--lease")
        self._process = subprocess.Popen(
            words, pass_fds=descriptors, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._reaper.began(self._process.pid)
        self._began(self._process.pid)

    async def keep(self) -> None:
        """Kill a router that hangs, and start another one whenever none runs. Never returns."""
        while True:
            if self._process is not None:
                await self._ends(self._process)
                await self._end(0.0)
            try:
                await self.start()
            except OSError as error:
                log.error("no router can be started (%s): tried again in %g s", error, PAUSE_S)
                await asyncio.sleep(PAUSE_S)

    async def stop(self) -> None:
        """Tell the router to end, kill it after `END_S`, and wait until it has gone. Idempotent."""
        self._desk.end()
        await self._end(END_S)
        await self._desk.left()

    def kill(self) -> None:
        """Kill the router immediately."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _ends(self, process: RouterProcess) -> None:
        """Return when the process has ended, or its router hangs."""
        try:
            end = ProcessEnd(process.pid)
        except ProcessLookupError:  # another supervisor's, which ended before it was watched
            return
        starts_s = 0.0 if isinstance(process, MarkedProcess) else IMPORT_S
        hung = self._desk.hung(starts_s)
        work = [asyncio.ensure_future(end.wait()), asyncio.ensure_future(hung)]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in work:
                task.cancel()
            end.close()

    async def _end(self, patience_s: float) -> None:
        """Wait at most `patience_s` seconds for the router to end, then kill what is left of its
        process group.
        """
        process, self._process = self._process, None
        if process is None:
            return
        await asyncio.to_thread(_ended, process, patience_s)
        self._reaper.over(process.pid)


def _ended(process: RouterProcess, patience_s: float) -> None:
    """Wait at most `patience_s` seconds for the process, then kill its group, and wait until the
    whole group has gone, at most `END_S` seconds.
    """
    with contextlib.suppress(subprocess.TimeoutExpired, TimeoutError):
        process.wait(patience_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with contextlib.suppress(ChildProcessError):
        while True:  # what was forked is this process's child now
            os.waitpid(-process.pid, 0)
    until = time.monotonic() + END_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < until:  # or another one's, which reaps it
            os.killpg(process.pid, 0)
            time.sleep(0.01)
