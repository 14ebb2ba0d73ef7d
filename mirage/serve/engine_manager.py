"""One tenant's engine kept running: started, noticed dead, started again, for a while failed."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, Protocol

from mirage.config import Config, TenantSection
from mirage.control.debts import Debtor, Overdue
from mirage.control.roster.states import LifeState
from mirage.processes.marks import UNKNOWN_STATUS, MarkedProcess
from mirage.processes.reaper_client import ReaperClient
from mirage.protocol import Allotment, Hello
from mirage.serve import launcher
from mirage.serve.adapting.copies import AdapterCopies
from mirage.serve.adapting.engine_routes import EngineAdapterRoutes
from mirage.serve.adapting.tenant_adapters import TenantAdapters
from mirage.serve.adoption.book import RunBook
from mirage.serve.adoption.code import order_of
from mirage.serve.adoption.counted import device_bytes
from mirage.serve.adoption.judging import EngineWanted, unwelcome
from mirage.serve.adoption.record import EngineRecord
from mirage.serve.device import DeviceHealth
from mirage.serve.ending import Ending, Evidence, failed_step
from mirage.serve.errors import EngineFailed
from mirage.serve.fit import Fit
from mirage.serve.hollow import hollow_start
from mirage.serve.limits import with_causes
from mirage.serve.lost_watch import LostWatch
from mirage.serve.means import Means
from mirage.serve.oom import OomKills
from mirage.serve.process import EngineProcess
from mirage.serve.registry import TenantServer
from mirage.serve.restarts import RESTARTS, Pause, Restarts
from mirage.serve.routed.table import REACHABLE
from mirage.serve.routing.desk import EndVerdict
from mirage.serve.rundir import RunDir
from mirage.serve.silence import silent
from mirage.serve.standstill import Standstill
from mirage.serve.starting import start_program
from mirage.serve.within import within
from mirage.units import size
from vmm.faults import FAULTS, Fault, Scope, in_text

ROOM_POLL_S = 0.05
FIRST_STEP = "loaded, computing a first step"
NOTE_S = 10.0
"""Seconds between two looks for what an engine has in /dev/shm."""
STOPPED_POLL_S = 1.0
"""Seconds between two looks whether a process of a start is stopped."""
LEAST_S = 0.5
"""Seconds left for the first step, if the rest of a start took all of its timeout."""
SAID_AFTER_S, SAID_EVERY_S = 1.0, 10.0
"""Seconds after which, and then between, reports that an engine waits for memory to start."""


class ShareRoom(Protocol):
    """The tenant's share of the device."""

    async def called(self) -> None:
        """Returns when an engine shall start."""

    def serves(self, seconds: float) -> None:
        """An engine serves, so long after its start."""

    def ends(self) -> None:
        """It is about to end."""

    def ended(self, pause: Pause) -> None:
        """It has ended, or did not start; it may start again after that pause."""

    def lend(self) -> None:
        """Nobody needs it for now: others may have it."""

    def keep(self) -> None:
        """An engine is to start: lend it to nobody any more."""

    def is_free(self) -> bool:
        """True if others have given it back."""

    def has_hollow(self, nbytes: int) -> bool:
        """True if they have given back so much of it, and its weights are in host memory."""

    def debtors(self) -> list[Debtor]:
        """The others that have not."""

    def end(self, name: str, why: str) -> None:
        """End the engine of a debtor."""


class HollowStart(NamedTuple):
    """A start with less memory than the share, and its command line."""

    begins: Allotment
    command: list[str]


async def _nothing(*_: str) -> None:
    """Nobody wants to know."""


async def _not_judged(tenant: str, ending: Ending) -> EndVerdict:
    """Nothing is known of its requests."""
    return EndVerdict()


class EngineManager:
    """Keeps `backend.state` true. `joined` and `lost` are what the control server hears."""

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

        `seen` returns once requests go as `backend` says.

        `over` is awaited with the tenant's name when no process of an engine is left. `running`
        tells the seconds for which this server has run, `had_requests` at which of them the
        engine's core last had a request. `book` records its processes.
        """
        socket = rundir.engine_socket(tenant.name)
        self.backend = TenantServer(tenant.name, socket, tenant.max_model_len)
        self._name, self._fit, self._startup_timeout_s = tenant.name, fit, startup_timeout_s
        self._rundir, self._reaper, self._starting = rundir, reaper, starting
        self._means, self._over, self._judged = means, over, judged
        self._device = device or DeviceHealth()
        self._book, self._model = book or RunBook(), tenant.model
        self._command = self._command_of(config, tenant)
        self._environment = launcher.environment(config, rundir) | launcher.switches(tenant)
        self.adapters = TenantAdapters(
            self.backend.loading,
            EngineAdapterRoutes(socket),
            AdapterCopies(rundir.adapters(tenant.name), config.adapter_folders),
            seen,
            self._say,
        )
        self._hollow = self._hollow_of(config, tenant)
        self._starts_hollow = False
        """True if the present start, or the last one, is without memory for all layers."""
        self._stays_whole = False
        """True if such a start has failed: the next one is not."""
        self._engine = EngineProcess(socket, rundir.log(tenant.name), means.start or start_program)
        self._connected = asyncio.Event()
        self._stepped = asyncio.Event()
        """Set once the model has computed a first step in this start."""
        self._no_room = ""
        """Reason why too little of the device is left for it to serve; empty if enough is."""
        self._refused: str | None = None
        """Reason why the control server sent the engine away; None if it did not."""
        self._failure = ""
        """Reason why the engine did not start; empty if it did."""
        self._start_s: dict[str, float] = {}
        """Seconds of the parts of the last start."""
        self._error = ""
        """The exception over which its core ends."""
        self._fault: Fault | None = None
        """Fault of the GPU behind that exception; None if there is none."""
        self._by_us: Ending | None = None
        """End that this server brought about; None if it did not."""
        self._begins = False
        """True while a start has no process yet: what ends it then ends the process at once."""
        self._served = self._has_served = False
        """True if the present engine has served, and if any has."""
        self._frozen = False
        """True if this start was ended because a process of it had been stopped from outside."""
        self._broke = False
        """True if the last engine has not ended because it was told to stop."""
        self._up = False
        """True once its server has answered, in this start."""
        self._lost_in_first_step = False
        """True if its core left the control server before it had computed a step."""
        self._core_first = False
        """True if its core ended, or left the control server, before its API server ended."""
        self._oom = OomKills()
        self._serving: list[asyncio.Task[None]] = []
        """Tasks for as long as the engine serves."""
        self._hang_s, self._fetches_s = config.hang_s, launcher.fetches_s(tenant)
        self._running, self._had_requests = running, had_requests or running
        self._restarts = Restarts(means.backoff_s, means.rest_s)
        self._standstill: Standstill | None = None
        """Words about its last start."""
        self._room: ShareRoom | None = None
        self._stopping = False
        """True once it was told to stop, until it is called again."""
        self._left: EngineRecord | None = None
        """Engine of another server that is awaited, or goes on; None from its end."""

    def declares(self, config: Config, tenant: TenantSection, fit: Fit) -> None:
        """Its tenant is declared anew: so it is started from the next time on."""
        self._fit, self.backend.max_model_len = fit, tenant.max_model_len
        self._model = tenant.model
        self._command = self._command_of(config, tenant)
        self._environment = launcher.environment(config, self._rundir) | launcher.switches(tenant)
        self._hollow = self._hollow_of(config, tenant)
        self._fetches_s = launcher.fetches_s(tenant)
        self._restarts = Restarts(self._means.backoff_s, self._means.rest_s)

    def _command_of(
        self, config: Config, tenant: TenantSection, begins: Allotment | None = None
    ) -> list[str]:
        socket, control = self.backend.socket, self._rundir.control_socket
        proofs = launcher.proofs_folder(config, self._rundir)
        program = self._means.server
        return launcher.command(config, tenant, self._fit, socket, control, program, proofs, begins)

    def _hollow_of(self, config: Config, tenant: TenantSection) -> HollowStart | None:
        begins = hollow_start(config, tenant, self._fit)
        if begins is None:
            return None
        return HollowStart(begins, self._command_of(config, tenant, begins))

    # -- starting -----------------------------------------------------------------------

    def _say_start(self) -> None:
        if self._starts_hollow and self._hollow is not None:
            held, layers = size(self._hollow.begins.grant_bytes), self._fit.layers
            streamed = self._hollow.begins.alpha + self._hollow.begins.beta
            self._say(f"starting with {held}, {streamed} of {layers} layers streamed")
            return
        share, parameters = size(self._fit.grant_bytes), size(self._fit.parameter_bytes)
        blocks = max(0, self._fit.base_blocks - 1)
        self._say(f"starting (share {share}, parameters {parameters}, {blocks} KV blocks)")

    async def _start(self) -> None:
        begun = time.monotonic()
        self.backend.comeback.starts(begun)
        self._refused, self._failure, self._error, self._by_us = None, "", "", None
        self._fault = None
        if self._device.reason:
            self._failure = self._device.reason
            raise EngineFailed(self._failure)
        self._core_first = self._served = False
        self._up = self._lost_in_first_step = self._frozen = False
        self._stepped.clear()
        self._no_room = ""
        self._oom = OomKills()
        self._begins = True
        try:
            await self._starting()
            await self._get_ready()
        finally:
            self._begins = False
        await self.adapters.begins()
        self._serves()
        self.backend.enters(LifeState.READY)
        self.backend.reason = ""
        self.backend.comeback.serves(time.monotonic())
        if self._room is not None:
            self._room.serves(time.monotonic() - begun)
        self._say(f"ready in {time.monotonic() - begun:.0f} s ({self._start_words()})")

    def _start_words(self) -> str:
        """``"warm start: process 0.1 s, server 8.2 s, connection 0.0 s, first step 0.3 s"``."""
        parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in self._start_s.items())
        return f"{'warm' if self._engine.is_warm else 'cold'} start: {parts}"

    def _serves(self) -> None:
        self._served = self._has_served = True
        work = (self._listen(), self.adapters.keep())
        self._serving = [asyncio.create_task(each) for each in work]
        self._book.serves(self._name)

    async def _get_ready(self) -> None:
        self._start_s, lap = {}, self._laps()
        order = self.wanted.order  # before it reads a file

        def began(group: int) -> None:
            self._reaper.began(group)
            self._book.began(self._name, group, order, self._engine.log)

        try:
            command = self._command
            if self._starts_hollow and self._hollow is not None:
                command = self._hollow.command
            await self._engine.start(command, self._environment, began)
        except OSError as error:
            self._failure = f"it cannot be started ({error})"
            raise EngineFailed(f"tenant {self._name!r}: {self._failure}") from None
        self._begins = False
        if self._by_us is not None:
            self._engine.kill()
        self._standstill = Standstill(self._engine.pid, self._hang_s, self._running())
        progress = asyncio.create_task(self._tell_progress())
        watch = asyncio.create_task(self._end_if_stopped())
        try:
            begun = self._running()
            lap("process")
            await self._answers()
            lap("server")
            self._up = True
            self._end_if_without_core()
            await self._introduced()
            lap("connection")
            await self._has_stepped(begun)
            lap("first step")
            await self._note_shared()
        except EngineFailed as error:
            self._failure = await self._why_not(error)
            await self._look_at_device(self._fault or in_text(self._failure))
            self._failure = self._device.reason or self._failure
            raise self.failure from None
        finally:
            progress.cancel()
            watch.cancel()

    def _laps(self) -> Callable[[str], None]:
        """Function that notes the seconds of a part of this start when the part is over."""
        last = time.monotonic()

        def lap(part: str) -> None:
            nonlocal last
            self._start_s[part], last = time.monotonic() - last, time.monotonic()

        return lap

    async def _tell_progress(self) -> None:
        """A start takes from seconds to minutes: every now and then a sign that it goes on."""
        begun = self._running()
        while True:
            await asyncio.sleep(self._means.progress_s)
            words = FIRST_STEP if self._in_first_step else self._engine.progress()
            words = self._stands_still() or words
            seconds = f"{self._running() - begun:.0f} of {self._startup_timeout_s:g} s"
            self._say(f"starting for {seconds}{f' ({words})' if words else ''}")

    async def _end_if_stopped(self) -> None:
        """End a start of which a process has been stopped for `hang_s`: nobody may continue it."""
        assert self._standstill is not None
        while True:
            await asyncio.sleep(min(STOPPED_POLL_S, self._hang_s / 4))
            with suppress(OSError):
                if why := self._standstill.stopped_too_long(self._running()):
                    self._frozen = True
                    self.hangs(why)
                    return

    async def _keep_noting(self) -> None:
        while True:
            await self._note_shared()
            await asyncio.sleep(NOTE_S)

    async def _note_shared(self) -> None:
        """Note what the engine has in /dev/shm, in case that its whole group is killed at once."""
        with suppress(OSError):
            if new := await asyncio.to_thread(self._engine.new_semaphores):
                self._reaper.made(self._engine.pid, new)

    async def _answers(self) -> None:
        limit_s = self._startup_timeout_s
        try:
            await within(limit_s, self._running, self._engine.ready())
        except TimeoutError:
            raise self._late(f"not ready after {limit_s:g} s") from None

    async def _introduced(self) -> None:
        limit_s = self._means.hello_s
        try:
            await within(limit_s, self._running, self._engine.until(self._connected))
        except TimeoutError:
            late = "its server is up, but its engine did not connect to the control socket in"
            why = f": {still}" if (still := self._stands_still()) else ""
            raise EngineFailed(f"{late} {limit_s:g} s{why}") from None

    async def _has_stepped(self, begun: float) -> None:
        """Raises `EngineFailed` unless its model computes a step in the time of its start.

        Like a user's request that step waits for the turn and for memory, and may compile for
        minutes. Whether it hangs is judged by the engine's signs of life, as ever.
        """
        limit_s = self._startup_timeout_s
        left = max(LEAST_S, begun + limit_s - self._running())
        try:
            await within(left, self._running, self._engine.until(self._stepped))
        except TimeoutError:
            raise self._late(f"its first step was not computed after {limit_s:g} s") from None
        if self._no_room:
            raise EngineFailed(self._no_room)

    def _late(self, what: str) -> EngineFailed:
        return EngineFailed(f"{what}: {self._stands_still() or 'raise --startup-timeout'}")

    def _stands_still(self) -> str:
        """Reason why its start does not go on, as far as its processes show."""
        with suppress(OSError):
            return self._standstill.look(self._running()) if self._standstill else ""
        return ""

    @property
    def stopping(self) -> bool:
        """True if it was told to stop, and was not called since."""
        return self._stopping

    @property
    def failure(self) -> EngineFailed:
        """Error of its last start, which failed."""
        return EngineFailed(f"tenant {self._name!r}: {self._failure}{self._where()}")

    @property
    def begins_again(self) -> bool:
        """True if its last start was only stopped from outside, and another one follows."""
        return self._frozen and self.backend.state is not LifeState.FAILED

    @property
    def starts(self) -> bool:
        """True while an engine runs that has not made its first step."""
        return self._engine.is_running and not self._stepped.is_set()

    @property
    def _in_first_step(self) -> bool:
        return self._connected.is_set() and not self._stepped.is_set()

    async def _why_not(self, error: EngineFailed) -> str:
        """Reason why it did not start."""
        if self._refused is not None:
            return f"the control server refused its engine: {self._refused}"
        if self._by_us is not None:
            return f"while it started, its {self._by_us}"
        why = await self._step_failed() or str(error)
        return with_causes(why, self._oom.lately())

    async def _step_failed(self) -> str:
        """Ending of the core in its first step, in words; empty without one, or if no fault."""
        if not self._lost_in_first_step:
            return ""
        await self._engine.core_gone()  # a core that just closes its socket has no status yet
        ending = Ending("engine core", self._engine.core_status(), self._error)
        return failed_step(ending, await asyncio.to_thread(self._engine.last_error))

    def _where(self) -> str:
        if self._refused is not None:
            return ""
        kept = self._rundir.keeps_logs
        return f" ({f'full log: {self._engine.log}' if kept else '--log-dir keeps logs'})"

    # -- engines of another server ------------------------------------------------------

    @property
    def wanted(self) -> EngineWanted:
        """The engine that it would start now."""
        order = order_of(self._command, self._environment, self._model)
        return EngineWanted(order, str(self._engine.log))

    def goes_on(self, left: EngineRecord, process: MarkedProcess) -> None:
        """Have an engine that runs, once it says hello again. `keep` comes after. Or `disowns`.

        Raises `OSError` if it has just ended.
        """
        self._engine.goes_on(process)
        self._left, self._up = left, True
        self._stepped.set()
        self._reaper.began(process.pid)
        self._book.goes_on(self._name, left)

    def unwelcome(self, hello: Hello) -> str:
        """Reason to send an engine away that says hello; empty if it is the one that is awaited."""
        if hello.holdings is None:
            ours = self._engine.has(hello.pid)
            return "" if ours else f"process {hello.pid} is of none that was started"
        awaited = None if self._connected.is_set() else self._left
        return unwelcome(hello, awaited, device_bytes(hello.pid))

    async def returned(self) -> None:
        """Returns when the engine that is awaited is back, and its memory booked."""
        await self._connected.wait()
        await self.adapters.found()

    def adopted(self) -> None:
        """It is back, and has its place."""
        self.backend.adopted = True

    async def disowns(self) -> None:
        """End an engine that was to go on."""
        self._connected.clear()
        self.adapters.over()
        self._engine.kill()
        await self._end(grace_s=0)
        self._stepped.clear()
        self._up = False

    # -- what the control server hears --------------------------------------------------

    def came(self, pid: int) -> None:
        """The engine has loaded its model and said hello, from process `pid`."""
        self._engine.has_core(pid)
        self._book.came(self._name, pid)

    def joined(self) -> None:
        """The engine's memory is booked."""
        self._connected.set()
        if self._left is None:
            self._say("loaded")

    def stepped(self, no_room: str = "") -> None:
        """The model has computed a first step; it may not serve if `no_room` gives a reason."""
        self._no_room = no_room
        self._stepped.set()

    def failed(self, error: str, fault: str) -> None:
        """The engine's core ends over an exception of class `error`, maybe a `fault` of the GPU."""
        self._error, self._fault = error, FAULTS.get(fault)

    async def lost(self, reason: str | None) -> None:
        """The engine closed its control socket, or was sent away for a `reason`.

        Without its core a server is of no use. One that is just starting is left to tell why.
        Returns when the core is dead, and its memory the kernel's.
        """
        self._lost_in_first_step = self._in_first_step
        self._connected.clear()
        self._refused = reason
        self._core_first = self._core_first or not self._engine.server_has_ended
        if reason is not None or self.backend.state in REACHABLE:
            self._is_down()
            self._engine.kill()
        self._end_if_without_core()
        await self._engine.core_gone()

    def _end_if_without_core(self) -> None:
        """Kill an engine whose core was lost in its first step, once the reason is known.

        The core has told its error, or the API server is up and has nothing to add.
        """
        if self._lost_in_first_step and (self._error or self._up):
            self._engine.kill()

    def _is_down(self) -> None:
        """Send nothing to it from now on."""
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
        """Ask the API server again and again whether it lives, and end an engine whose does not.

        And one whose API server and core lose requests.
        """
        watch = LostWatch(
            self.backend.answers,
            self._hang_s + self._fetches_s,
            self._engine.pid,
            self._running,
            self._had_requests,
        )
        async for silent_s in silent(self.backend.socket, self._running, self._hang_s):
            self._oom.look()
            if lost := watch.look(silent_s):
                self._say(f"its API server and its core lost {lost} requests: answered with 502")
            if why := watch.estrangement:
                self.hangs(why)
                return
        self.hangs(f"its API server has not answered for {self._hang_s:g} s")

    # -- keeping ------------------------------------------------------------------------

    async def keep(self, room: ShareRoom) -> None:
        """Start the engine whenever it is called, whose caller heeds its pauses.

        It starts only while its `room` is free: others first give back what it had lent them.
        """
        self._room = room
        while True:
            if self._left is None:
                await self._come(room)
                pause = await self._start_again()
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

    async def _come(self, room: ShareRoom) -> None:
        """Wait until it is to start, and until its room is free."""
        await room.called()
        self._stopping = False
        room.keep()
        if self.backend.state is LifeState.FAILED:
            self.backend.enters(LifeState.DOWN)
        await self._have(room)

    async def _device_is_well(self, room: ShareRoom) -> None:
        while self._device.reason:
            self.backend.fail(self._device.reason)
            self.backend.comeback.pauses(time.monotonic(), self._device.wait_s)
            room.lend()
            await self._device.well()

    async def _have(self, room: ShareRoom) -> None:
        """Wait until the room is free. Whoever hangs on it is ended."""
        overdue, since, reason = Overdue(self._hang_s), time.monotonic(), self.backend.reason
        says = since + SAID_AFTER_S
        while not self._may_begin(room) and not self._device.reason and not self._stopping:
            debtors, now = room.debtors(), time.monotonic()
            self.backend.reason = _waits(debtors)
            if now >= says:
                self._say(f"{self.backend.reason}, for {now - since:.0f} s now")
                says = now + SAID_EVERY_S
            for name, seconds in overdue.look(debtors, self._running()).items():
                room.end(name, f"for {seconds:.0f} s it gave nothing back to {self._name!r}")
            await asyncio.sleep(ROOM_POLL_S)
        self.backend.reason = reason

    def _may_begin(self, room: ShareRoom) -> bool:
        """True if there is room for all of its share, or for a start with less.

        One with less is for engines whose model has served: what fails of it costs one start.
        """
        self._starts_hollow = False
        if room.is_free():
            return True
        if self._hollow is None or not self._has_served or self._stays_whole:
            return False
        self._starts_hollow = room.has_hollow(self._hollow.begins.grant_bytes)
        return self._starts_hollow

    async def _start_again(self) -> Pause:
        """Start it, and wait until it ends."""
        if self._stopping or self._device.reason:
            return Pause(0.0)
        self.backend.restarts += self._has_served and self._broke
        self._say_start()
        noting = asyncio.create_task(self._keep_noting())
        try:
            await self._try_to_start()
            return await self._ended()
        finally:
            noting.cancel()

    async def _try_to_start(self) -> None:
        """Start it; one that fails is ended."""
        try:
            await self._start()
            self._stays_whole = False
        except EngineFailed as error:
            self._stays_whole = self._starts_hollow
            if not self._device.reason and not self._stopping:
                say(str(error))
            await self._end(grace_s=0)

    async def _ended(self) -> Pause:
        """Wait until the engine has ended and nothing of it is left; when to start it again."""
        since = time.monotonic()
        status = await self._engine.ended()
        served_s = time.monotonic() - since
        self._is_down()
        self._engine.kill()
        await self._engine.core_gone()
        ending = self._how_it_ended(status)
        if self._served:
            ending = await self._by_device(ending)
        verdict = await self._judged(self._name, ending)
        await self._end(grace_s=0)
        if self._served and ending.fault:
            self._device.met(self._name, FAULTS[ending.fault], verdict.bodies)
        self._broke = not self._stopping
        if self._device.reason:
            self.backend.fail(self._device.reason)
            return Pause(0.0)
        if self._stopping:
            self._restarts.stopped(served_s)
            self.backend.reason = ""
            return Pause(0.0)
        if not self._has_served and not self._frozen:
            self.backend.fail(self._failure or f"its {ending}")
            return self._restarts.rest()
        pause = self._restarts.ended(served_s, verdict.bodies)
        how = f"{ending}{verdict.words}" if self._served else "it did not start"
        count = (
            f"end {self._restarts.counted} of {RESTARTS}"
            if self._restarts.counts
            else "end not counted"
        )
        if pause.failed:
            given_up = f"given up after {RESTARTS} restarts"
            self._say(f"{how}: {given_up}")
            self.backend.fail(f"{given_up}: {self._failure or ending}")
        else:
            self.backend.reason = f"its {ending}" if self._served else self._failure
            self._say(f"{how}, starting again in {pause.seconds:g} s ({count})")
        return pause

    def _how_it_ended(self, code: int) -> Ending:
        """`code` is the API server's status, which may have ended first, over its core, or by us.

        Nobody tells it of one that another server has started.
        """
        status = None if code == UNKNOWN_STATUS else code
        if self._refused is not None:
            return Ending(refused=self._refused)
        if self._by_us is not None:
            return self._by_us
        if self._core_first or self._error:
            core = self._engine.core_status()
            return Ending("engine core", core, self._error, oom_kills=self._oom.lately())
        return Ending("API server", status, oom_kills=self._oom.lately())

    async def _by_device(self, ending: Ending) -> Ending:
        """`ending` with the device's fault behind it; the device is asked if there may be one."""
        fault = self._fault
        if fault is None and ending.status == -signal.SIGABRT:  # of libraries that cannot raise
            logged = await asyncio.to_thread(self._engine.last_error)
            fault = in_text(logged or "")
        if fault is not None or ending.unknown or ending.evidence is Evidence.HANG:
            await self._look_at_device(fault)
        return replace(ending, fault=fault.name if fault else "", device=self._device.reason)

    async def _look_at_device(self, fault: Fault | None) -> None:
        """Tell the device of a fault of its own; after any other let a fresh process look at it."""
        if fault is not None and fault.scope is Scope.DEVICE:
            self._device.met(self._name, fault)
        await self._device.look(self._name)

    # -- stopping -----------------------------------------------------------------------

    async def stop(self) -> None:
        """End the engine, with time to end by itself. Idempotent."""
        self._is_down()
        self._connected.clear()  # what the engine leaves undone is no failure
        await self._end(self._means.grace_s)

    async def _end(self, grace_s: float) -> None:
        self._left, self.backend.adopted = None, False
        if (group := await self._engine.stop(grace_s)) is not None:
            self._book.over(self._name)
            self._reaper.over(group)
            await self._over(self._name)

    def stops(self, why: str = "") -> None:
        """End the engine, or do not start it, until it is called again; `why` is told, if any."""
        self._stopping = True
        self._end_it(f"{why}: its engine is stopped" if why else "", Ending("engine", stopped=True))
        self.backend.reason = why or self.backend.reason

    def kill(self) -> None:
        """End it at once."""
        self._engine.kill()

    def hangs(self, why: str) -> None:
        """End it, unless it has ended: it is started again."""
        self._end_it(f"its engine hangs ({why}): it is ended", Ending("engine", hang=why))

    def device_failed(self, reason: str) -> None:
        """End the engine: its device has failed for this `reason`."""
        self._end_it("", Ending("engine", device=reason))
        if self.backend.state is not LifeState.STARTING:
            self.backend.fail(reason)

    def cannot_be_reached(self, why: str) -> None:
        """The same, by no fault of its own or of a request."""
        words = f"its engine cannot be reached ({why}): it is ended"
        self._end_it(words, Ending("engine", unreachable=why))

    def _end_it(self, words: str, ending: Ending) -> None:
        if self._by_us is None and (self._begins or self._engine.is_running):
            self._by_us = ending
            if words:
                self._say(words)
            self._is_down()
            self.backend.reason = f"its {ending}"
            if self._engine.is_running:
                self._engine.kill()

    def _say(self, line: str) -> None:
        say(f"{self._name}: {line}")


def _waits(debtors: Iterable[Debtor]) -> str:
    """``"waits for memory that others hold: 12.0 MiB tenant 'a'"``."""
    named = ", ".join(f"{size(debtor.bytes)} tenant {debtor.name!r}" for debtor in debtors)
    return f"waits for memory that others hold: {named}" if named else "waits for memory"


def say(line: str) -> None:
    """Progress, for the person at the terminal. A terminal that is gone is no reason to fail."""
    with suppress(OSError):
        print(f"mirage: {line}", file=sys.stderr, flush=True)
