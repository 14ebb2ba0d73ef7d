"""Start of one engine: its process, its API server, its connection, its first step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from mirage.serve.ends.ending import Ending, failed_step
from mirage.serve.engines.errors import EngineFailed
from mirage.serve.engines.process import EngineProcess
from mirage.serve.engines.run import EngineRun
from mirage.serve.engines.standstill import Standstill
from mirage.serve.engines.time_limit import within
from mirage.serve.launch.host_limits import with_causes

FIRST_STEP = "loaded, computing a first step"
STOPPED_POLL_S = 1.0
"""Seconds between two looks for processes of a start that SIGSTOP has stopped, at most."""
GONE_S = 1.0
"""Seconds to wait, after the end of an API server, for the end of the core's control connection."""
LEAST_S = 0.5
"""Least seconds for the first step, also if the rest of a start took all of its time-out."""


@dataclass(frozen=True)
class StartLimits:
    """Time-outs of a start, and the interval of its log lines, in seconds."""

    timeout_s: float
    """Time from the start of the engine's process to its first step."""
    hello_s: float
    """Time from the API server's first answer until the core has connected to the control
    server.
    """
    hang_s: float
    """Time for which one process of the start may be suspended (as by SIGSTOP), or all of them
    together may compute nothing."""
    progress_s: float
    """Time between two log lines about the start."""


class EngineStart:
    """Start of one engine, up to its first step."""

    def __init__(
        self,
        run: EngineRun,
        engine: EngineProcess,
        limits: StartLimits,
        running: Callable[[], float],
        say: Callable[[str], None],
        hangs: Callable[[str], None],
    ) -> None:
        """`running` returns the seconds for which this server has run; `hangs` ends the engine."""
        self._run, self._engine, self._limits = run, engine, limits
        self._running, self._say, self._hangs = running, say, hangs
        self._begun = self._running()
        self._standstill: Standstill | None = None

    async def succeeds(self, process: Awaitable[None]) -> None:
        """Await `process`, which starts the engine's process; return after the model's first step.

        Raises `OSError` if the process cannot be made, and `EngineFailed` if the start fails later.
        """
        lap = self._laps()
        await process
        self._run.begins = False
        if self._run.by_us is not None:
            self._engine.kill()
        self._begun = self._running()
        self._standstill = Standstill(self._engine.pid, self._limits.hang_s, self._begun)
        beside = [asyncio.create_task(each) for each in (self._tell(), self._end_if_stopped())]
        try:
            lap("process")
            await self._answers()
            lap("server")
            self._run.up = True
            if self._run.waits_for_nothing:
                self._engine.kill()
            await self._introduced()
            lap("connection")
            await self._has_stepped()
            lap("first step")
        finally:
            for task in beside:
                task.cancel()

    def _laps(self) -> Callable[[str], None]:
        """Function that notes the seconds of a part of the start, when called with its name at its
        end.
        """
        last = time.monotonic()

        def lap(part: str) -> None:
            nonlocal last
            self._run.seconds[part], last = time.monotonic() - last, time.monotonic()

        return lap

    async def _tell(self) -> None:
        """Log every `progress_s` seconds that the start goes on, and what it does. Never
        returns.
        """
        while True:
            await asyncio.sleep(self._limits.progress_s)
            words = FIRST_STEP if self._run.in_first_step else self._engine.progress()
            words = self._stands_still() or words
            seconds = f"{self._running() - self._begun:.0f} of {self._limits.timeout_s:g} s"
            self._say(f"starting for {seconds}{f' ({words})' if words else ''}")

    async def _end_if_stopped(self) -> None:
        """End a start of which a process has been stopped (as by SIGSTOP) for `hang_s` seconds."""
        assert self._standstill is not None
        while True:
            await asyncio.sleep(min(STOPPED_POLL_S, self._limits.hang_s / 4))
            with suppress(OSError):
                if why := self._standstill.stopped_too_long(self._running()):
                    self._run.frozen = True
                    self._hangs(why)
                    return

    async def _answers(self) -> None:
        limit_s = self._limits.timeout_s
        try:
            await within(limit_s, self._running, self._engine.ready())
        except TimeoutError:
            raise self._late(f"not ready after {limit_s:g} s") from None

    async def _introduced(self) -> None:
        limit_s = self._limits.hello_s
        try:
            await within(limit_s, self._running, self._engine.until(self._run.connected))
        except TimeoutError:
            late = "its server is up, but its engine did not connect to the control socket in"
            why = f": {still}" if (still := self._stands_still()) else ""
            raise EngineFailed(f"{late} {limit_s:g} s{why}") from None

    async def _has_stepped(self) -> None:
        """Wait for the first step. Raises `EngineFailed` if it is not computed in the start's
        time-out.

        Like a user's request it waits for the turn and for memory, and may compile for minutes. A
        step that hangs is noticed by the engine's missing signs of life, as always.
        """
        limit_s = self._limits.timeout_s
        left = max(LEAST_S, self._begun + limit_s - self._running())
        try:
            await within(left, self._running, self._engine.until(self._run.stepped))
        except TimeoutError:
            raise self._late(f"its first step was not computed after {limit_s:g} s") from None
        if self._run.no_room:
            raise EngineFailed(self._run.no_room)

    def _late(self, what: str) -> EngineFailed:
        return EngineFailed(f"{what}: {self._stands_still() or 'raise --startup-timeout'}")

    def _stands_still(self) -> str:
        """Reason why the start makes no progress, by its processes; empty if it makes some, or if
        their state cannot be read.
        """
        with suppress(OSError):
            return self._standstill.look(self._running()) if self._standstill else ""
        return ""

    async def why_not(self, error: EngineFailed) -> str:
        """Reason why the start failed; waits for the end of a core that was lost in its first
        step.
        """
        if self._run.refused is not None:
            return f"the control server refused its engine: {self._run.refused}"
        if self._run.by_us is not None:
            return f"while it started, its {self._run.by_us}"
        why = await self._step_failed() or str(error)
        return with_causes(why, self._run.oom.lately())

    async def _step_failed(self) -> str:
        """Words about a core that failed in its first step; empty if it did not, or not by
        itself.
        """
        if self._run.connected.is_set():  # its end may be seen before what it sent last is read
            with suppress(TimeoutError):
                await asyncio.wait_for(self._run.gone.wait(), GONE_S)
        if not self._run.lost_in_first_step:
            return ""
        await self._engine.core_gone()  # a core that just closes its socket has no status yet
        ending = Ending("engine core", self._engine.core_status(), self._run.error)
        return failed_step(ending, await asyncio.to_thread(self._engine.last_error))
