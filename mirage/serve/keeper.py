"""One tenant's engine kept running: started, noticed dead, started again, given up."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from mirage.config import Config, Tenant
from mirage.serve import launcher
from mirage.serve.board import Backend, EngineState
from mirage.serve.control import HELLO_S
from mirage.serve.errors import EngineFailed
from mirage.serve.fit import Fit, mib
from mirage.serve.lifeline import Lifeline
from mirage.serve.process import EngineProcess
from mirage.serve.rundir import RunDir

RESTARTS = 3
BACKOFF_S = 1.0
"""Doubled with every restart."""
FORGIVEN_AFTER_S = 600.0
"""An engine that served this long may be restarted `RESTARTS` times again."""
ROOM_POLL_S = 0.05
GRACE_S = 8.0
"""Between SIGTERM and SIGKILL."""


class Keeper:
    """Keeps `backend.state` true. `joined` and `lost` are what the control server hears."""

    def __init__(
        self,
        config: Config,
        tenant: Tenant,
        fit: Fit,
        rundir: RunDir,
        lifeline: Lifeline,
        startup_timeout_s: float,
    ) -> None:
        socket = rundir.engine_socket(config.tenants.index(tenant))
        self.backend = Backend(tenant.name, socket, tenant.max_model_len)
        self._name, self._fit, self._startup_timeout_s = tenant.name, fit, startup_timeout_s
        self._rundir, self._lifeline = rundir, lifeline
        self._command = launcher.command(config, tenant, fit, socket, rundir.control_socket)
        self._environment = launcher.environment(config, rundir)
        self._engine = EngineProcess(socket, rundir.log(tenant.name))
        self._connected = asyncio.Event()
        self._refused: str | None = None
        """Why the control server sent the engine away."""

    # -- starting -----------------------------------------------------------------------

    async def start(self) -> None:
        """For the first time. Raises `EngineFailed`."""
        share, parameters = mib(self._fit.grant_bytes), mib(self._fit.parameter_bytes)
        blocks = self._fit.base_blocks - 1
        self._say(f"starting (share {share}, parameters {parameters}, {blocks} KV blocks)")
        await self._start()

    async def _start(self) -> None:
        begun = time.monotonic()
        self._refused = None
        group = self._engine.start(self._command, self._environment)
        self._lifeline.began(group)
        try:
            await self._engine.ready(self._startup_timeout_s)
            await self._introduced()
        except EngineFailed as error:
            raise EngineFailed(f"tenant {self._name!r}: {self._why(error)}") from None
        self.backend.state = EngineState.READY
        self._say(f"ready in {time.monotonic() - begun:.0f} s")

    async def _introduced(self) -> None:
        try:
            async with asyncio.timeout(HELLO_S):
                await self._connected.wait()
        except TimeoutError:
            raise EngineFailed(
                f"its server is up, but its engine did not come to the control socket "
                f"in {HELLO_S:g} s"
            ) from None

    def _why(self, error: EngineFailed) -> str:
        if self._refused is not None:
            return f"the control server sent its engine away: {self._refused}"
        kept = self._rundir.keeps_logs
        return f"{error} ({f'full log: {self._engine.log}' if kept else '--log-dir keeps logs'})"

    # -- what the control server hears --------------------------------------------------

    def joined(self) -> None:
        """The engine has loaded its model and said hello."""
        self._connected.set()
        self._say("loaded")

    def lost(self, reason: str | None) -> None:
        """The engine closed its control socket, or was sent away for a `reason`.

        Without its core a server is of no use. One that is just starting is left to tell why.
        """
        self._connected.clear()
        self._refused = reason
        if reason is not None or self.backend.state is EngineState.READY:
            self.backend.state = EngineState.DOWN
            self._engine.kill()

    # -- keeping ------------------------------------------------------------------------

    async def keep(self, has_room: Callable[[], bool]) -> None:
        """Start the engine again whenever it ends; give it up after `RESTARTS` times.

        It starts only while `has_room`: others first give back what its share had lent them.
        """
        failures = 0
        while True:
            since = time.monotonic()
            await self._over()
            failures = 1 if time.monotonic() - since > FORGIVEN_AFTER_S else failures + 1
            if failures > RESTARTS:
                break
            pause = BACKOFF_S * 2 ** (failures - 1)
            self._say(f"ended, starting again in {pause:g} s ({failures} of {RESTARTS})")
            await asyncio.sleep(pause)
            while not has_room():
                await asyncio.sleep(ROOM_POLL_S)
            await self._start_again()
        self.backend.state = EngineState.FAILED
        self._say(f"given up after {RESTARTS} restarts; the other tenants go on")

    async def _start_again(self) -> None:
        self.backend.restarts += 1
        try:
            await self._start()
        except EngineFailed as error:
            say(str(error))
            await self._end(grace_s=0)

    async def _over(self) -> None:
        """Wait until the engine has ended and nothing of it is left."""
        await self._engine.ended()
        self.backend.state = EngineState.DOWN
        await self._end(grace_s=0)

    # -- stopping -----------------------------------------------------------------------

    async def stop(self) -> None:
        """End the engine, with time to end by itself. Twice is once."""
        self.backend.state = EngineState.DOWN
        await self._end(GRACE_S)

    async def _end(self, grace_s: float) -> None:
        if (group := await self._engine.stop(grace_s)) is not None:
            self._lifeline.over(group)

    def kill(self) -> None:
        """End it at once."""
        self._engine.kill()

    def _say(self, line: str) -> None:
        say(f"{self._name}: {line}")


def say(line: str) -> None:
    """Progress, for the person at the terminal. A terminal that is gone is no reason to fail."""
    with suppress(OSError):
        print(f"mirage: {line}", file=sys.stderr, flush=True)
