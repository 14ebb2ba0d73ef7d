"""Caretaker of the folders and sockets of a run, which a cleaner of temporary files may remove.

A missing folder or socket is made again. An engine's socket cannot be, so that engine is restarted.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from mirage.serve.ends.unreachable import Unreachable
from mirage.serve.engines.manager import EngineManager
from mirage.serve.routed.table import REACHABLE
from mirage.serve.rundir.folders import RunDir

logger = logging.getLogger("mirage.serve.device.caretaker")

LOOK_S = 0.5
FRESH_S = 600.0
"""Seconds between two renewals of the times of the run's files, which a cleaner would take for old
otherwise.
"""

Listen = Callable[[], Awaitable[bool]]
"""Function that makes a socket again; false if it is no longer wanted. It may raise `OSError` and
`ValueError`.
"""


class Caretaker:
    """Caretaker of the folders of a run, its sockets and its engines. It makes missing folders and
    sockets again, and has engines restarted that cannot be reached."""

    def __init__(
        self,
        rundir: RunDir,
        managers: Mapping[str, EngineManager],
        sockets: Mapping[Path, Listen],
    ) -> None:
        self._rundir, self._managers, self._sockets = rundir, managers, sockets
        self._unreachable = Unreachable()
        self._mending = asyncio.Lock()
        self._failure = ""
        self._fresh = time.monotonic()

    async def keep(self) -> None:
        """Mend folders and sockets, and look for engines that cannot be reached, every `LOOK_S`
        seconds. Never returns.
        """
        while True:
            await self.mend()
            self._look_at_engines()
            await asyncio.sleep(LOOK_S)

    async def mend(self) -> None:
        """Make missing folders and sockets again; a failure is logged once, and tried again
        later.
        """
        try:
            async with self._mending:
                made = self._rundir.mend()
                made += [path for path in self._sockets if await self._listens_again(path)]
            self._freshen()
        except (OSError, ValueError) as error:
            if str(error) != self._failure:
                logger.error("the folder of this run cannot be kept: %s", error)
            self._failure = str(error)
            return
        self._failure = ""
        if made:
            logger.warning(
                "made again: %s; something had removed them, perhaps a cleaner of temporary files",
                ", ".join(map(str, made)),
            )

    async def _listens_again(self, path: Path) -> bool:
        return not path.is_socket() and await self._sockets[path]()

    def _freshen(self) -> None:
        now = time.monotonic()
        if now - self._fresh >= FRESH_S:
            self._fresh = now
            self._rundir.freshen()

    def _look_at_engines(self) -> None:
        serving = {
            name: manager
            for name, manager in self._managers.items()
            if manager.backend.state in REACHABLE
        }
        reasons = {name: unreachable(m.backend.socket) for name, m in serving.items()}
        found = {name: why for name, why in reasons.items() if why}
        for name, why in self._unreachable.look(found, time.monotonic()).items():
            self._managers[name].cannot_be_reached(why)


def unreachable(path: Path) -> str:
    """Reason why no process listens at a Unix socket; empty if one does, even if it is busy.

    Empty as well if this process can open no socket to try.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as there:
            error = there.connect_ex(str(path))
    except OSError:
        return ""
    if error == errno.ENOENT:
        return "its socket is gone"
    if error == errno.ECONNREFUSED:
        return "nobody listens at its socket"
    return ""
