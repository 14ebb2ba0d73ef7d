"""Processes of one engine: started, watched, waited for, and ended with all that they started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp

from mirage.processes import reaper
from mirage.processes.child import AdoptedChild, Child, Start, start_program
from mirage.processes.marks import MarkedProcess
from mirage.processes.pidfd import ProcessEnd
from mirage.serve.engines.errors import EngineFailed
from mirage.serve.logs.engine_log import last_error, last_progress

POLL_S = 0.05
"""Seconds between two checks if a server listens; it is asked for its health only if it does."""
TRACKER_S = 3.0
"""Seconds to wait after a kill for processes that are still in the kernel, and for resource
trackers that clean up.
"""
STANDS_S = 1.0
"""Longest time in seconds until a server that is asked to end stands still, so that its semaphores
can be noted."""
NOT_STARTED = 127
"""Exit status of a program that could not be started; shells use this one too."""


class EngineProcess:
    """A process group led by one vLLM server. `start` begins it; after `stop` it is gone."""

    def __init__(self, socket: Path, log: Path, start: Start = start_program) -> None:
        self.socket = socket
        self.log = log
        self._start = start
        self._process: Child | None = None
        self._ended: asyncio.Future[int] | None = None
        self._core: ProcessEnd | None = None
        self._reaped: dict[int, int] = {}
        """Exit codes of orphans of the group, or minus their signals, by process id."""
        self._semaphores: dict[str, int] = {}
        self._log_start = 0

    async def start(
        self, command: list[str], environment: dict[str, str], began: Callable[[int], None]
    ) -> None:
        """Start the server in a session of its own; `began` gets its process group before it runs.

        Its output is appended to the log. Raises `OSError` if it cannot be started; `ended` then
        returns `NOT_STARTED`. If this call is cancelled, a process that was started is killed.
        """
        self._forget_core()
        self._process = None
        self._semaphores = {}
        self._ended = asyncio.get_running_loop().create_future()
        try:
            await self._begin(command, environment, began)
        except OSError:
            self._ended.set_result(NOT_STARTED)
            raise

    async def _begin(
        self, command: list[str], environment: dict[str, str], began: Callable[[int], None]
    ) -> None:
        self.socket.unlink(missing_ok=True)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        starting = asyncio.to_thread(self._start, command, environment, self.log)
        begun = asyncio.ensure_future(starting)
        try:
            process = await asyncio.shield(begun)
        except asyncio.CancelledError:
            _end(await begun)
            raise
        try:
            self._ended = _when_ended(process)
        except OSError:  # nobody would hear of its end
            _end(process)
            raise
        self._process = process
        began(process.pid)
        process.begin()

    def goes_on(self, process: MarkedProcess) -> None:
        """Take over `process`, a server that another supervisor has started. Raises `OSError` if it
        has ended.
        """
        self._forget_core()
        self._semaphores = {}
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._ended = _when_ended(process)
        self._process = process

    def has(self, pid: int) -> bool:
        """True if process `pid` belongs to the engine's process group."""
        try:
            return self._process is not None and os.getpgid(pid) == self._process.pid
        except ProcessLookupError:
            return False

    def has_core(self, pid: int) -> None:
        """Watch process `pid` as the engine core, which is alive and connected."""
        self._forget_core()
        with contextlib.suppress(OSError):  # it has just ended
            self._core = ProcessEnd(pid)

    def _forget_core(self) -> None:
        self._reaped.clear()
        if self._core is not None:
            self._core.close()
            self._core = None

    async def core_gone(self) -> None:
        """Wait until the core has ended, and its memory and files are released."""
        if self._core is not None:
            await self._core.wait()

    def core_status(self) -> int | None:
        """Exit code of the core, or minus the signal that ended it, once the server has ended.

        The API server reaps its core. If the server ended first this process reaps it, or another
        one if the server was taken over. None if there was no core, or if the core was reaped
        elsewhere on a kernel before 6.15.
        """
        if self._core is None or self._process is None:
            return None
        self._reap()
        return self._reaped.get(self._core.pid, self._core.status())

    @property
    def pid(self) -> int:
        """Process id of the server, which is the number of its group."""
        assert self._process is not None, "start comes first"
        return self._process.pid

    @property
    def server_has_ended(self) -> bool:
        """True if the server was started and has ended."""
        return self._process is not None and self._process.poll() is not None

    @property
    def is_warm(self) -> bool:
        """True if the server was forked from a process that had imported vLLM."""
        return isinstance(self._process, AdoptedChild)

    @property
    def is_running(self) -> bool:
        """True if the server was started and lives."""
        return self._process is not None and self._process.poll() is None

    async def ended(self) -> int:
        """Wait until the server has ended; return its exit status."""
        assert self._ended is not None, "start comes first"
        return await asyncio.shield(self._ended)

    async def ready(self) -> None:
        """Wait until ``/health`` answers 200. Raises `EngineFailed` if the server ends before."""
        assert self._ended is not None, "start comes first"
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self.socket))) as http:
            while not (self.socket.exists() and await _healthy(http)):
                if self._ended.done():
                    raise await self._failure(self._ended)
                await asyncio.wait([self._ended], timeout=POLL_S)

    async def until(self, event: asyncio.Event) -> None:
        """Wait for `event`. Raises `EngineFailed` if the server ends before."""
        assert self._ended is not None, "start comes first"
        waiting = asyncio.create_task(event.wait())
        try:
            either = (waiting, self._ended)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._ended.done() and not event.is_set():
            raise await self._failure(self._ended)

    def progress(self) -> str:
        """Progress of the start, read from the log, in short; empty if the log shows none."""
        return last_progress(self.log, self._log_start)

    def last_error(self) -> str | None:
        """Most telling error line logged since the start; None if there is none."""
        return last_error(self.log, self._log_start)

    async def _failure(self, ended: asyncio.Future[int]) -> EngineFailed:
        return EngineFailed(await asyncio.to_thread(self._how_it_ended, ended.result()))

    def _how_it_ended(self, status: int) -> str:
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        words = self.last_error() or "it wrote no error"
        return f"the engine ended with {how} before it was ready: {words}"

    def new_semaphores(self) -> dict[str, int]:
        """Semaphores of the group in /dev/shm that are new since the last call: inodes by their
        names.

        `stop` removes those that are left when the group has ended. Raises `OSError` if this
        process may open no more files to look for them.
        """
        if self._process is None:
            return {}
        found = reaper.semaphores_of(self._process.pid)
        new = dict(found.items() - self._semaphores.items())
        self._semaphores |= new
        return new

    async def stop(self, grace_s: float) -> int | None:
        """Ask the server to end, wait up to `grace_s` seconds, then kill what is left of its group.

        Returns the number of the group, which has ended; None if no server was ever started.
        """
        if self._process is None:
            return None
        if self._process.poll() is None:
            await self._ask_to_end(self._process)
        if not await self._gone(grace_s):
            self.kill()
        while not await self._gone(TRACKER_S):
            reaper.kill_all(self._process.pid)
        with contextlib.suppress(OSError):
            reaper.remove_semaphores(self._semaphores)
        return self._process.pid

    async def _ask_to_end(self, server: Child) -> None:
        """Send the server SIGTERM. A server that starts ends by it at once, perhaps before its
        resource tracker has heard of a semaphore that it made. So it is suspended first, and its
        semaphores are noted, for `stop` to remove them.

        Only the wait is in another thread, because two threads that reap a child at once would
        lose its exit status. A server whose stop is cancelled is not left suspended.
        """
        runs = not reaper.is_suspended(server.pid)
        server.send_signal(signal.SIGSTOP)
        try:
            with contextlib.suppress(OSError):
                made = await asyncio.to_thread(reaper.of_stopping, [server.pid], STANDS_S)
                self._semaphores |= made
        finally:
            server.send_signal(signal.SIGTERM)
            if runs:
                server.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the group immediately, as `reaper.kill_members` does.

        If no file can be opened to look for members, only the server and its core are killed;
        `stop` kills the rest after resource trackers had time to clean up.
        """
        if self._process is None:
            return
        try:
            reaper.kill_members(self._process.pid, self._semaphores)
        except OSError:
            self._kill_known(self._process)

    def _kill_known(self, server: Child) -> None:
        server.send_signal(signal.SIGKILL)
        if self._core is not None:
            self._core.kill()

    async def _gone(self, patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        while lives := self._group_lives():
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(0.02)
        return not lives

    def _group_lives(self) -> bool:
        if self._process is None:
            return False
        if self._process.poll() is not None:
            self._reap()
        if isinstance(self._process, MarkedProcess):  # others' zombies are not ours to reap
            return any(reaper.members_of(self._process.pid))
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _reap(self) -> None:
        """Reap the ended orphans of the group, which `adopt_orphans` made children of this
        process.
        """
        assert self._process is not None, "start comes first"
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-self._process.pid, os.WNOHANG))[0]:
                self._reaped[ended[0]] = os.waitstatus_to_exitcode(ended[1])


def _end(process: Child) -> None:
    made: dict[str, int] = {}
    reaper.kill(process.pid, made)
    process.wait()
    with contextlib.suppress(OSError):
        reaper.remove_semaphores(made)


def _when_ended(process: Child) -> asyncio.Future[int]:
    """Future that gets the exit status as soon as the process has ended, without polling."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    descriptor = os.pidfd_open(process.pid)

    def on_end() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        status = process.wait()
        if not future.done():
            future.set_result(status)

    loop.add_reader(descriptor, on_end)
    return future


async def _healthy(http: aiohttp.ClientSession) -> bool:
    """True if ``/health`` answers 200; the request waits without a limit."""
    try:
        async with http.get("http://engine/health", timeout=aiohttp.ClientTimeout(None)) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError):
        return False
