"""Keeper of one device server on this machine: starts it, kills it if it hangs, and starts it
again.
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
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from mirage.control.liveness import RunningTime
from mirage.machines.board import NewsBoard
from mirage.machines.line import BEAT_S, DeviceCannot, DeviceReady, DeviceStops, FromDevice
from mirage.machines.seam import DeviceNews
from mirage.private_file import replace_private
from mirage.processes.pidfd import ProcessEnd
from mirage.processes.reaper_client import ReaperClient
from mirage.wire import Broken, Channel

log = logging.getLogger(__name__)

PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Seconds before another start, first and longest. The pause is doubled with each server that lived
no longer than the longest pause, and begins anew after one that lived longer.
"""
IMPORT_S = 120.0
"""Seconds in which a started server must give its first sign of life."""
STOP_S = 60.0
"""Seconds in which a server must end with its engines, beside those for saving its tiers."""


class DeviceEnded(Exception):
    """Error: a device server ended before it was ready; `refused` is True if the user can correct
    the reason.
    """

    def __init__(self, why: str, *, refused: bool) -> None:
        super().__init__(why)
        self.refused = refused


class DeviceKeeper:
    """Manager of one device server at a time. Run `keep`, and call `stop` at the end."""

    def __init__(
        self,
        name: str,
        file: Path,
        end_left: Callable[[], None],
        program: Sequence[str],
        reaper: ReaperClient,
        hang_s: float,
        save_s: float,
        say: Callable[[str], None],
        board: NewsBoard,
    ) -> None:
        """`name` is the device's name. The server's order is written to `file` for the `program`.

        `program` has arguments for Python. `end_left` ends the engines that a killed server has
        left, and blocks. A server that is silent for `hang_s` seconds counts as hung; one that
        stops has `save_s` seconds to save its tiers. The `board` receives servers that are
        ready, and their ends.
        """
        self.name, self._file, self._end_left, self._board = name, file, end_left, board
        self.order = b""
        """Order for the next server; to be set before `keep` runs."""
        self._program, self._reaper, self._say = tuple(program), reaper, say
        self._hang_s, self._stop_s = hang_s, STOP_S + save_s
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[FromDevice]
        self._end: ProcessEnd
        self._running = RunningTime(2 * BEAT_S)
        self._heard = self._patience_s = 0.0
        self._cannot: DeviceCannot | None = None
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set when the first server is ready; fails with `DeviceEnded` if it ends before."""
        self.ends: Counter[str] = Counter({"died": 0, "hung": 0})
        """Number of servers that ended unexpectedly, by cause."""
        self.is_ready = False
        """True while the present server has said that it is ready."""

    async def keep(self) -> None:
        """Start a server, and another one whenever it ends or hangs. Never returns."""
        pause_s = PAUSE_S
        while True:
            begun = time.monotonic()
            try:
                self._start()
            except OSError as error:
                log.error("no server of device %s can be started (%s)", self.name, error)
            else:
                await self._ends()
                self._over()
            lived_s = time.monotonic() - begun
            if lived_s > LONGEST_PAUSE_S:
                pause_s = PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _start(self) -> None:
        """Start a server's process. Raises `OSError` if it cannot be started."""
        replace_private(self._file, self.order, lasting=False)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        words = [str(self._file), str(theirs.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *self._program, *words],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._reaper.began(self._process.pid)
        self._channel = Channel(ours, FromDevice)
        self._end = ProcessEnd(self._process.pid)
        self._cannot, self._heard, self._patience_s = None, self._running.seconds, IMPORT_S

    async def _ends(self) -> None:
        """Return when the server has ended; one that hangs is killed first."""
        end = asyncio.ensure_future(self._end.wait())
        try:
            while not end.done():
                await asyncio.wait([end], timeout=BEAT_S / 2)
                self._running.tick(time.monotonic())
                self._hear()
                if self._running.seconds - self._heard >= self._patience_s:
                    self._say(f"{self.name}: its server hangs: it is ended, and another one starts")
                    self.ends["hung"] += 1
                    self._end.kill()
                    await end
                    return
            self.ends["died"] += 1
        finally:
            end.cancel()

    def _hear(self) -> None:
        with contextlib.suppress(Broken):
            for message in self._channel.hear():
                self._heard, self._patience_s = self._running.seconds, self._hang_s
                if isinstance(message, DeviceReady):
                    self.is_ready = True
                    self._board.tell(DeviceNews(self.name, True, "its server is ready"))
                    if not self.first.done():
                        self.first.set_result(None)
                elif isinstance(message, DeviceCannot):
                    self._cannot = message

    def _over(self) -> None:
        """Note the end of the server's process, tell the board, and close the connection to it."""
        assert self._process is not None
        self._hear()
        status = self._process.wait()
        self._reaper.over(self._process.pid)
        was_ready, self._process, self.is_ready = self.is_ready, None, False
        self._channel.close()
        self._end.close()
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        why = self._cannot.why if self._cannot is not None else f"its server ended with {how}"
        if was_ready:
            self._board.tell(DeviceNews(self.name, False, why))
        if not self.first.done():
            refused = self._cannot is not None and self._cannot.refused
            self.first.set_exception(DeviceEnded(why, refused=refused))
            self.first.exception()  # it may be that nobody waits
        elif self._cannot is None:
            self._say(f"{self.name}: {why}: another one starts")

    def stops(self) -> None:
        """Tell the server that the whole machine stops: engines that it leaves from now on are
        ended immediately.
        """
        if self._process is not None:
            self._channel.tell(DeviceStops())

    async def stop(self) -> None:
        """Have the server end together with its engines; if it takes too long, kill it and end
        its engines. Idempotent. `keep` must not run any more.
        """
        if (process := self._process) is None:
            return
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stop_s):
                await self._end.wait()
        self.kill()
        await self._end.wait()
        self._over()
        await asyncio.to_thread(self._end_left)

    def kill(self) -> None:
        """Kill the server immediately. Its reaper ends its engines, after the lease, or immediately
        if `stops` was called.
        """
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
