"""One tenant's engine kept running: started, watched, and started again when it has ended."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from mirage.config import Config, TenantSection
from mirage.control.debts import Overdue
from mirage.control.roster.states import LifeState
from mirage.processes.child import start_program
from mirage.processes.marks import UNKNOWN_STATUS, MarkedProcess
from mirage.processes.reaper_client import ReaperClient
from mirage.protocol import Hello
from mirage.serve.adapting.copies import AdapterCopies
from mirage.serve.adapting.engine_routes import EngineAdapterRoutes
from mirage.serve.adapting.tenant_adapters import TenantAdapters
from mirage.serve.adoption.book import RunBook
from mirage.serve.adoption.counted import device_bytes
from mirage.serve.adoption.judging import EngineWanted, unwelcome
from mirage.serve.adoption.record import EngineRecord
from mirage.serve.ends.ending import Ending, Evidence
from mirage.serve.ends.restarts import RESTARTS, Pause, Restarts
from mirage.serve.engines.command import EngineCommand
from mirage.serve.engines.errors import EngineFailed
from mirage.serve.engines.lost import LostWatch
from mirage.serve.engines.process import EngineProcess
from mirage.serve.engines.room import ShareRoom, waiting_for
from mirage.serve.engines.run import EngineRun
from mirage.serve.engines.silence import silent
from mirage.serve.engines.start import EngineStart, StartLimits
from mirage.serve.fit.fit import Fit
from mirage.serve.health.device_health import DeviceHealth
from mirage.serve.launch.programs import Means
from mirage.serve.logs.progress import say
from mirage.serve.registry.registry import TenantServer
from mirage.serve.routed.table import REACHABLE
from mirage.serve.routing.line import EndVerdict
from mirage.serve.rundir.folders import RunDir
from vmm.faults import FAULTS, Fault, Scope, in_text

ROOM_POLL_S = 0.05
NOTE_S = 10.0
"""Seconds between two looks for semaphores of an engine in /dev/shm."""
SAID_AFTER_S, SAID_EVERY_S = 1.0, 10.0
"""Seconds after which it is first logged that an engine waits for memory to start, and seconds
between later lines.
"""


async def _nothing(*_: str) -> None:
    """Observer that does nothing."""


async def _not_judged(tenant: str, ending: Ending) -> EndVerdict:
    """Empty verdict on the end of an engine, used if no router judges the engine's requests."""
    return EndVerdict()


class EngineManager:
    """Manager of one engine: it keeps the engine running, and the state in `backend` up to date.

    The control server tells it what it hears from the engine: `came`, `joined`, `stepped`,
    `failed`, `lost`.
    """

    def __init__(
        self,
        config: Config,
        tenant: TenantSection,
        fit: Fit,
        rundir: RunDir,
        reaper: ReaperClient,
        startup_timeout_s: float,
        means: Means,
        starting: Callable[[], Awaitable[None]] = _nothing,
        over: Callable[[str], Awaitable[None]] = _nothing,
        running: Callable[[], float] = time.monotonic,
        device: DeviceHealth | None = None,
        had_requests: Callable[[], float] | None = None,
        book: RunBook | None = None,
        judged: Callable[[str, Ending], Awaitable[EndVerdict]] = _not_judged,
        seen: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """`starting` is awaited before an engine starts, `judged` when one has ended.

        `seen` returns once the router knows the state in `backend`. `over` is awaited with the
        tenant's name when no process of an engine is left. `running` returns the seconds for which
        this server has run, `had_requests` its value when the engine's core last had a request.
        `book` records the engine's processes.
        """
        socket = rundir.engine_socket(tenant.name)
        self.backend = TenantServer(tenant.name, socket, tenant.max_model_len)
        self._name, self._rundir, self._reaper = tenant.name, rundir, reaper
        self._means, self._starting, self._over, self._judged = means, starting, over, judged
        self._device, self._book = device or DeviceHealth(), book or RunBook()
        self._limits = StartLimits(
            startup_timeout_s, means.hello_s, config.hang_s, means.progress_s
        )
        self._running, self._had_requests = running, had_requests or running
        self.declares(config, tenant, fit)
        self.adapters = TenantAdapters(
            self.backend.loading,
            EngineAdapterRoutes(socket),
            AdapterCopies(rundir.adapters(tenant.name), config.adapter_folders),
            seen,
            self._say,
        )
        self._engine = EngineProcess(socket, rundir.log(tenant.name), means.start or start_program)
        self._run = EngineRun()
        """Run of the present engine, or of the last one."""
        self._has_served = False
        """True once an engine of this tenant has served."""
        self._stays_whole = False
        """True after a hollow start that failed: the next one gets the whole share."""
        self._broke = False
        """True if the last engine ended without being told to stop."""
        self._serving: list[asyncio.Task[None]] = []
        """Tasks that run as long as the engine serves."""
        self._room: ShareRoom | None = None
        self._stopping = False
        """True from the order to stop until an engine is called for again."""

    def declares(self, config: Config, tenant: TenantSection, fit: Fit) -> None:
        """Use this declaration of the tenant for its next starts, with a clean record of
        restarts.
        """
        self.backend.max_model_len = tenant.max_model_len
        self._command = EngineCommand(config, tenant, fit, self._rundir, self._means.server)
        self._restarts = Restarts(self._means.backoff_s, self._means.rest_s)

    # -- starting -----------------------------------------------------------------------

    async def _start(self, hollow: bool) -> None:
        begun = time.monotonic()
        self.backend.comeback.starts(begun)
        run = self._run = EngineRun(hollow, begins=not self._device.reason)
        if self._device.reason:
            run.failure = self._device.reason
            raise EngineFailed(run.failure)
        try:
            await self._starting()
            await self._get_ready(run)
        finally:
            run.begins = False
        await self.adapters.begins()
        self._serves()
        self.backend.enters(LifeState.READY)
        self.backend.reason = ""
        self.backend.comeback.serves(time.monotonic())
        if self._room is not None:
            self._room.serves(time.monotonic() - begun)
        self._say(f"ready in {time.monotonic() - begun:.0f} s ({self._start_words(run)})")

    def _start_words(self, run: EngineRun) -> str:
        """Words for the log line of a finished start, with the seconds of its parts.

        Such as ``"warm start: process 0.1 s, server 8.2 s, connection 0.0 s, first step 0.3 s"``.
        """
        parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in run.seconds.items())
        return f"{'warm' if self._engine.is_warm else 'cold'} start: {parts}"

    def _serves(self) -> None:
        self._run.served = self._has_served = True
        work = (self._listen(), self.adapters.keep())
        self._serving = [asyncio.create_task(each) for each in work]
        self._book.serves(self._name)

    async def _get_ready(self, run: EngineRun) -> None:
        start = EngineStart(run, self._engine, self._limits, self._running, self._say, self.hangs)
        try:
            await start.succeeds(self._process(run.hollow))
            await self._note_shared()
        except OSError as error:
            run.failure = f"it cannot be started ({error})"
            raise EngineFailed(f"tenant {self._name!r}: {run.failure}") from None
        except EngineFailed as error:
            run.failure = await start.why_not(error)
            await self._look_at_device(run.fault or in_text(run.failure))
            run.failure = self._device.reason or run.failure
            raise self.failure from None

    async def _process(self, hollow: bool) -> None:
        """Make the engine's process, with the arguments of a `hollow` start or of one with the
        whole share; the reaper and the book know its group before it runs."""
        order = self._command.order()  # before it reads a file

        def began(group: int) -> None:
            self._run.oom.follow(group)
            self._reaper.began(group)
            self._book.began(self._name, group, order, self._engine.log)

        await self._engine.start(self._command.words(hollow), self._command.environment, began)

    async def _keep_noting(self) -> None:
        while True:
            await self._note_shared()
            await asyncio.sleep(NOTE_S)

    async def _note_shared(self) -> None:
        """Tell the reaper and the run's record of new semaphores in /dev/shm, in case the whole
        group is killed before it can remove them.
        """
        with suppress(OSError):
            if new := await asyncio.to_thread(self._engine.new_semaphores):
                self._reaper.made(self._engine.pid, new)
                self._book.made(self._name, new)

    @property
    def stopping(self) -> bool:
        """True from the order to stop until an engine is called for again."""
        return self._stopping

    @property
    def failure(self) -> EngineFailed:
        """Error with the reason why the last start failed."""
        return EngineFailed(f"tenant {self._name!r}: {self._run.failure}{self._where()}")

    @property
    def begins_again(self) -> bool:
        """True if the last start was ended because a process was suspended, as by SIGSTOP, and
        will be repeated.
        """
        return self._run.frozen and self.backend.state is not LifeState.FAILED

    @property
    def starts(self) -> bool:
        """True while an engine's server runs that has not computed its first step."""
        return self._engine.is_running and not self._run.stepped.is_set()

    def _where(self) -> str:
        if self._run.refused is not None:
            return ""
        kept = self._rundir.keeps_logs
        return f" ({f'full log: {self._engine.log}' if kept else '--log-dir keeps logs'})"

    # -- engines of another server ------------------------------------------------------

    @property
    def wanted(self) -> EngineWanted:
        """Hash of the start that this manager would make now, and its log."""
        return EngineWanted(self._command.order(), str(self._engine.log))

    def goes_on(self, left: EngineRecord, process: MarkedProcess) -> None:
        """Take over an engine that another server started; it is used once it says hello again.

        Then `keep` has to run, or `disowns` be called. Raises `OSError` if the engine has just
        ended.
        """
        self._engine.goes_on(process)
        self._run = EngineRun.adopted(left)
        self._reaper.began(process.pid)
        self._book.goes_on(self._name, left)

    def unwelcome(self, hello: Hello) -> str:
        """Reason to refuse an engine that says hello; empty if it is the expected one."""
        if hello.holdings is None:
            ours = self._engine.has(hello.pid)
            return "" if ours else f"process {hello.pid} is of none that was started"
        awaited = None if self._run.connected.is_set() else self._run.left
        return unwelcome(hello, awaited, device_bytes(hello.pid))

    async def returned(self) -> None:
        """Return when the engine that was taken over has connected, and then has told its adapters
        or has let `FOUND_S` seconds pass.
        """
        await self._run.connected.wait()
        await self.adapters.found()

    def adopted(self) -> None:
        """Note that the engine that was taken over is back and has its memory."""
        self.backend.adopted = True

    async def disowns(self) -> None:
        """End an engine that was taken over."""
        self.adapters.over()
        self._engine.kill()
        await self._end(grace_s=0)
        self._run = EngineRun()

    # -- what the control server hears --------------------------------------------------

    def came(self, pid: int) -> None:
        """Note that the engine has loaded its model and said hello from process `pid`."""
        self._engine.has_core(pid)
        self._run.oom.follow(pid)
        self._book.came(self._name, pid)

    def joined(self) -> None:
        """Note that the engine is connected and its memory is in the ledger."""
        self._run.connected.set()
        if self._run.left is None:
            self._say("loaded")

    def stepped(self, no_room: str = "") -> None:
        """Note that the model has computed its first step.

        `no_room` is the reason why the engine may not serve all the same; empty if it may.
        """
        self._run.no_room = no_room
        self._run.stepped.set()

    def failed(self, error: str, fault: str) -> None:
        """Note that the core ends over an exception of class `error`.

        `fault` names a fault of the GPU behind it; it is empty or unknown for other exceptions.
        """
        self._run.error, self._run.fault = error, FAULTS.get(fault)

    async def lost(self, reason: str | None) -> None:
        """Handle the end of the engine's control connection; `reason` is set if this server closed
        it.

        An API server without its core is of no use, and is killed. One that is just starting may
        first log the cause. Returns when the core has ended and its memory is free.
        """
        self._run.is_lost(reason, self._engine.server_has_ended)
        serves = self.backend.state in REACHABLE
        if reason is not None or serves:
            self._is_down()
        if reason is not None or serves or self._run.waits_for_nothing:
            self._engine.kill()
        await self._engine.core_gone()

    def _is_down(self) -> None:
        """Stop the work for a serving engine, so that no request is sent to it from now on."""
        for task in self._serving:
            task.cancel()
        self._serving = []
        self.adapters.over()
        if self._device.reason:
            self.backend.fail(self._device.reason)
        elif not self._stopping:
            self.backend.enters(LifeState.DOWN)
            if self._room is not None:
                self._room.ends()

    async def _listen(self) -> None:
        """Probe the API server until it has been silent for `hang_s`; then end the engine.

        The engine is also ended if its API server and its core lose requests.
        """
        watch = LostWatch(
            self.backend.answers,
            self._limits.hang_s + self._command.fetches_s,
            self._engine.pid,
            self._running,
            self._had_requests,
        )
        async for silent_s in silent(self.backend.socket, self._running, self._limits.hang_s):
            self._run.oom.look()
            if lost := watch.look(silent_s):
                self._say(f"its API server and its core lost {lost} requests: answered with 502")
            if why := watch.estrangement:
                self.hangs(why)
                return
        self.hangs(f"its API server has not answered for {self._limits.hang_s:g} s")

    # -- keeping ------------------------------------------------------------------------

    async def keep(self, room: ShareRoom) -> None:
        """Start the engine whenever `room` calls for one, until this task is cancelled.

        It starts only once other tenants have given back what they had of its room, or enough
        of it for a hollow start.
        """
        self._room = room
        while True:
            if self._run.left is None:
                pause = await self._start_again(hollow=await self._come(room))
            else:
                self._serves()
                pause = await self._ended()
            self.backend.comeback.pauses(time.monotonic(), pause.seconds)
            room.ended(pause)
            if pause.failed:
                room.lend()
                self._say(
                    "its memory is lent to the other tenants; "
                    f"the next start is in {pause.seconds:g} s"
                )
            await self._device_is_well(room)

    async def _come(self, room: ShareRoom) -> bool:
        """Wait for a call to start, and then for room; return True for a hollow start."""
        await room.called()
        self._stopping = False
        room.keep()
        if self.backend.state is LifeState.FAILED:
            self.backend.enters(LifeState.DOWN)
        return await self._have(room)

    async def _device_is_well(self, room: ShareRoom) -> None:
        while self._device.reason:
            self.backend.fail(self._device.reason)
            self.backend.comeback.pauses(time.monotonic(), self._device.wait_s)
            room.lend()
            await self._device.well()

    async def _have(self, room: ShareRoom) -> bool:
        """Wait until the room is free, or enough of it for a hollow start; return True for a hollow
        start.

        Another engine that owes memory and gives nothing back for `hang_s` seconds is ended.
        Returns early if the engine is told to stop or the device fails.
        """
        overdue, since, reason = Overdue(self._limits.hang_s), time.monotonic(), self.backend.reason
        says, hollow = since + SAID_AFTER_S, False
        while not room.is_free() and not self._device.reason and not self._stopping:
            if hollow := self._may_begin_hollow(room):
                break
            debtors, now = room.debtors(), time.monotonic()
            self.backend.reason = waiting_for(debtors)
            if now >= says:
                self._say(f"{self.backend.reason}, for {now - since:.0f} s now")
                says = now + SAID_EVERY_S
            for name, seconds in overdue.look(debtors, self._running()).items():
                room.end(name, f"for {seconds:.0f} s it gave nothing back to {self._name!r}")
            await asyncio.sleep(ROOM_POLL_S)
        self.backend.reason = reason
        return hollow

    def _may_begin_hollow(self, room: ShareRoom) -> bool:
        """True if there is room for a hollow start, and one may be tried.

        It is tried only if the tenant has served before, and not after a hollow start that failed.
        """
        least = self._command.hollow_bytes
        if least is None or not self._has_served or self._stays_whole:
            return False
        return room.has_hollow(least)

    async def _start_again(self, hollow: bool) -> Pause:
        """Start the engine, `hollow` or with the whole share; wait until it has ended, and return
        the pause before the next start."""
        if self._stopping or self._device.reason:
            return Pause(0.0)
        self.backend.restarts += self._has_served and self._broke
        self._say(self._command.told(hollow))
        noting = asyncio.create_task(self._keep_noting())
        try:
            await self._try_to_start(hollow)
            return await self._ended()
        finally:
            noting.cancel()

    async def _try_to_start(self, hollow: bool) -> None:
        """Start the engine; end its processes if that fails. After a `hollow` start that failed the
        next one gets the whole share."""
        try:
            await self._start(hollow)
            self._stays_whole = False
        except EngineFailed as error:
            self._stays_whole = hollow
            if not self._device.reason and not self._stopping:
                say(str(error))
            await self._end(grace_s=0)

    async def _ended(self) -> Pause:
        """Wait until nothing of the engine is left; return the pause before the next start."""
        since = time.monotonic()
        status = await self._engine.ended()
        served_s = time.monotonic() - since
        self._is_down()
        self._engine.kill()
        await self._engine.core_gone()
        ending = self._how_it_ended(status)
        served = self._run.served
        if served:
            ending = await self._by_device(ending)
        verdict = await self._judged(self._name, ending)
        await self._end(grace_s=0)
        if served and ending.fault:
            self._device.met(self._name, FAULTS[ending.fault], verdict.bodies)
        self._broke = not self._stopping
        if self._device.reason:
            self.backend.fail(self._device.reason)
            return Pause(0.0)
        if self._stopping:
            self._restarts.stopped(served_s)
            self.backend.reason = ""
            return Pause(0.0)
        if not self._has_served and not self._run.frozen:
            self.backend.fail(self._run.failure or f"its {ending}")
            return self._restarts.rest()
        pause = self._restarts.ended(served_s, verdict.bodies)
        how = f"{ending}{verdict.words}" if served else "it did not start"
        count = (
            f"end {self._restarts.counted} of {RESTARTS}"
            if self._restarts.counts
            else "end not counted"
        )
        if pause.failed:
            given_up = f"given up after {RESTARTS} restarts"
            self._say(f"{how}: {given_up}")
            self.backend.fail(f"{given_up}: {self._run.failure or ending}")
        else:
            self.backend.reason = f"its {ending}" if served else self._run.failure
            self._say(f"{how}, starting again in {pause.seconds:g} s ({count})")
        return pause

    def _how_it_ended(self, code: int) -> Ending:
        """Ending by the exit status `code` of the API server, `UNKNOWN_STATUS` if it could not be
        read.
        """
        status = None if code == UNKNOWN_STATUS else code
        return self._run.ending(status, self._engine.core_status())

    async def _by_device(self, ending: Ending) -> Ending:
        """`ending` with the fault of the GPU and the failure of the device behind it, if there is
        one.

        The device is looked at if one of them may be the cause.
        """
        fault = self._run.fault
        if fault is None and ending.status == -signal.SIGABRT:  # of libraries that cannot raise
            logged = await asyncio.to_thread(self._engine.last_error)
            fault = in_text(logged or "")
        if fault is not None or ending.unknown or ending.evidence is Evidence.HANG:
            await self._look_at_device(fault)
        return replace(ending, fault=fault.name if fault else "", device=self._device.reason)

    async def _look_at_device(self, fault: Fault | None) -> None:
        """Report a fault of the device itself; then let a fresh process look at the device."""
        if fault is not None and fault.scope is Scope.DEVICE:
            self._device.met(self._name, fault)
        await self._device.look(self._name)

    # -- stopping -----------------------------------------------------------------------

    async def stop(self) -> None:
        """End the engine, with the `grace_s` seconds of `Means` to end by itself. Idempotent."""
        self._is_down()
        self._run.connected.clear()  # what the engine leaves undone is no failure
        await self._end(self._means.grace_s)

    async def _end(self, grace_s: float) -> None:
        self._run.left, self.backend.adopted = None, False
        if (group := await self._engine.stop(grace_s)) is not None:
            self._book.over(self._name)
            self._reaper.over(group)
            await self._over(self._name)

    def stops(self, why: str = "") -> None:
        """End the engine, or cancel its start, until it is called again.

        `why` is the reason to log and to show; empty for none.
        """
        self._stopping = True
        self._end_it(f"{why}: its engine is stopped" if why else "", Ending("engine", stopped=True))
        self.backend.reason = why or self.backend.reason

    def kill(self) -> None:
        """Kill the engine's processes immediately."""
        self._engine.kill()

    def hangs(self, why: str) -> None:
        """End the engine because it hangs, unless it has ended; it will be started again."""
        self._end_it(f"its engine hangs ({why}): it is ended", Ending("engine", hang=why))

    def device_failed(self, reason: str) -> None:
        """End the engine because its device has failed for this `reason`."""
        self._end_it("", Ending("engine", device=reason))
        if self.backend.state is not LifeState.STARTING:
            self.backend.fail(reason)

    def cannot_be_reached(self, why: str) -> None:
        """End the engine because its socket cannot be reached, which is no evidence against
        requests.
        """
        words = f"its engine cannot be reached ({why}): it is ended"
        self._end_it(words, Ending("engine", unreachable=why))

    def _end_it(self, words: str, ending: Ending) -> None:
        if self._run.by_us is None and (self._run.begins or self._engine.is_running):
            self._run.by_us = ending
            if words:
                self._say(words)
            self._is_down()
            self.backend.reason = f"its {ending}"
            if self._engine.is_running:
                self._engine.kill()

    def _say(self, line: str) -> None:
        say(f"{self._name}: {line}")
