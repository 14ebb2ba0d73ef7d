"""`mirage serve`: everything composed, started, kept running, and ended without a trace."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mirage.config import Config, ConfigError, Tenant
from mirage.control.arbiter import Arbiter
from mirage.control.controller import Controller
from mirage.control.debts import Debtor
from mirage.control.liveness import FIRST_STEP_S
from mirage.control.profiled import UNPROFILED, Profiled
from mirage.processes.reaper_client import ReaperClient
from mirage.processes.unread import unread_stderr
from mirage.samples import INTERVAL_S
from mirage.serve import files
from mirage.serve.caretaker import Caretaker
from mirage.serve.control import ControlServer
from mirage.serve.device import Device, asked
from mirage.serve.engine_manager import EngineManager, say
from mirage.serve.errors import EngineFailed
from mirage.serve.means import Means
from mirage.serve.outside import Outside
from mirage.serve.preflight import Preflight, preflight, refusal
from mirage.serve.process import adopt_orphans
from mirage.serve.ready_file import ReadyFile
from mirage.serve.registry import Registry, TenantServer
from mirage.serve.router import Router
from mirage.serve.rundir import RunDir
from mirage.serve.tiers import Tiers
from mirage.units import size

STARTUP_S = {"host": 300.0, "cuda": 900.0}
"""On a GPU tens of GB are read, copied and registered, kernels compiled and graphs captured."""
LOOKING = "looking at the models, before any engine starts"
EXIT_CODES: dict[int, int] = {signal.SIGTERM: 0, signal.SIGHUP: 0, signal.SIGINT: 130}


@dataclass(frozen=True)
class Options:
    """What the command line adds to the configuration."""

    host: str = "127.0.0.1"
    port: int = 8000
    ready_file: Path | None = None
    log_dir: Path | None = None
    startup_timeout_s: float | None = None
    """None: `STARTUP_S` of the device's kind."""
    all_or_nothing: bool = False
    """Whether one tenant that cannot start ends them all."""


def serve(
    config: Config,
    options: Options,
    means: Means,
    profiled: Mapping[str, Profiled] = UNPROFILED,
) -> int:
    """Serve until a signal; returns the exit code (0 on SIGTERM, 130 on SIGINT).

    `profiled` has times of tenants' steps for the controller to begin with.
    Raises `ConfigError` for what the user can correct, before any engine is started, and
    `EngineFailed` if no engine gets ready, or, with `all_or_nothing`, if one does not; by then
    everything started has ended.
    """
    ReadyFile(options.ready_file).prepare()
    files.check_folders(options.log_dir)
    with _signals_exit(), _telling(LOOKING, means.progress_s):
        found = preflight(config, means.probe)
    if found.refused and options.all_or_nothing:
        raise refusal(found.refused)
    adopt_orphans()
    with (
        unread_stderr(),
        RunDir(options.log_dir) as rundir,
        ReaperClient(*rundir.folders, ready_file=options.ready_file) as reaper,
    ):
        arbiter = Arbiter.of(config, profiled=profiled)
        supervisor = Supervisor(config, found, options, rundir, reaper, means, arbiter)
        return asyncio.run(supervisor.run())


@contextmanager
def _signals_exit() -> Iterator[None]:
    """Inside, a signal that stops a server raises `SystemExit`, so that nothing is left behind."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(EXIT_CODES[number])

    before = {number: signal.signal(number, leave) for number in EXIT_CODES}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _telling(what: str, every_s: float) -> Iterator[None]:
    """Inside, a line every `every_s` seconds says that it goes on; the caller may block."""
    begun, done = time.monotonic(), threading.Event()

    def tell() -> None:
        while not done.wait(every_s):
            say(f"{what}, for {time.monotonic() - begun:.0f} s")

    threading.Thread(target=tell, name="mirage-progress", daemon=True).start()
    try:
        yield
    finally:
        done.set()


class Supervisor:
    """One run, from the first process to the last."""

    def __init__(
        self,
        config: Config,
        found: Preflight,
        options: Options,
        rundir: RunDir,
        reaper: ReaperClient,
        means: Means,
        arbiter: Arbiter,
    ) -> None:
        self._config, self._options, self._rundir = config, options, rundir
        self._ready_file = ReadyFile(options.ready_file)
        self._tiers = Tiers(config, rundir.tier_socket)
        self._outside = Outside(config.device.memory, means.margin_bytes)
        self._device = _device(config, means)
        self._device.failing = self._end_all
        timeout_s = options.startup_timeout_s or STARTUP_S[config.device.kind]
        self._managers = {
            tenant.name: EngineManager(
                config,
                tenant,
                found.fits[tenant.name],
                rundir,
                reaper,
                timeout_s,
                means,
                lambda: self._caretaker.mend(),
                self._over,
                lambda: self._control.running.seconds,
                self._device,
            )
            for tenant in config.tenants
            if tenant.name in found.fits
        }
        self._refused = found.refused
        backends = {t.name: self._backend(t) for t in config.tenants}
        for name, named in found.adapters.items():
            backends[name].adapters = named
        self._registry = Registry(config.policy, config.device.memory, backends)
        self._registry.pool = self._tiers.state
        self._registry.disk = self._tiers.disk
        self._registry.device = self._device.told
        self._registry.why = arbiter.controller.why
        self._registry.outside = self._outside.told
        self._arbiter = arbiter
        self._control = ControlServer(
            self._arbiter,
            self._registry,
            ManagedEngines(self._managers, self._stepped),
            hang_s=config.hang_s,
            first_step_s=FIRST_STEP_S if _compiles(config) else 0.0,
            on_host=config.device.kind == "host",
        )
        self._router = Router(self._registry, self._tiers.resize)
        sockets = {
            rundir.control_socket: self._listen_to_engines,
            rundir.tier_socket: self._tiers.listen,
        }
        self._caretaker = Caretaker(rundir, self._managers, sockets)
        self._failures: dict[str, EngineFailed] = {}
        """Errors of first starts, by tenant."""
        self._settled = asyncio.Event()
        """Each first start has come to an end, and not all have failed."""
        self._signal: asyncio.Future[int]

    def _backend(self, tenant: Tenant) -> TenantServer:
        if tenant.name in self._managers:
            return self._managers[tenant.name].backend
        socket = self._rundir.engine_socket(self._config.tenants.index(tenant))
        backend = TenantServer(tenant.name, socket, tenant.max_model_len)
        backend.fail(self._refused[tenant.name])
        return backend

    async def _listen_to_engines(self) -> bool:
        await self._control.listen(self._rundir.control_socket)
        return True

    async def run(self) -> int:
        """Start, serve, stop. See `serve` for what it returns and raises."""
        loop = asyncio.get_running_loop()
        self._signal = loop.create_future()
        for number in EXIT_CODES:
            loop.add_signal_handler(number, self._on_signal, number)
        work = asyncio.create_task(self._serve(), name="serve")
        try:
            either: list[asyncio.Future[Any]] = [work, self._signal]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            return self._signal.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await self._stop()

    # -- starting and serving -----------------------------------------------------------

    async def _serve(self) -> None:
        """Never returns: it fails or is cancelled."""
        begun = time.monotonic()
        url = await self._listen()
        await self._control.start(self._rundir.control_socket)
        self._tiers.start()
        self._leave_out_refused()
        starts = {name: asyncio.Event() for name in self._managers}
        kept = (self._start_and_keep(name, starts) for name in self._managers)
        ready = self._say_ready(url, begun, starts.values())
        watched = (self._control.watch(), self._caretaker.keep(), self._device.keep())
        await _together([*watched, ready, *kept])

    async def _start_and_keep(self, name: str, starts: Mapping[str, asyncio.Event]) -> None:
        """Keep a tenant from its first start on, whether the others have started or not."""
        manager = self._managers[name]
        if self._options.all_or_nothing:
            await manager.start()
        elif (error := await _tried(manager)) is not None:
            self._failures[name] = error
            starts[name].set()
            await self._settled.wait()  # perhaps no tenant is left, and the command ends
        starts[name].set()
        await manager.keep(self._share(name))

    async def _say_ready(self, url: str, begun: float, starts: Iterable[asyncio.Event]) -> None:
        """Say that all is ready once each start has ended. Raises `EngineFailed`: see `serve`."""
        await _all_set(starts)
        if len(self._failures) == len(self._managers):
            if self._device.reason:
                raise EngineFailed(self._device.reason)
            why = "; ".join(str(self._failures[name]) for name in self._managers)
            many = len(self._failures) > 1
            raise EngineFailed(f"no tenant could start: {why}" if many else why)
        self._settled.set()
        self._ready_file.write(url)
        all_of_them, policy = len(self._config.tenants), self._config.policy.value
        started = len(self._managers) - len(self._failures)
        count = f"{all_of_them}" if started == all_of_them else f"{started} of {all_of_them}"
        took = time.monotonic() - begun
        say(f"ready at {url} in {took:.0f} s (policy {policy}, {count} tenants)")
        await self._sample()

    def _share(self, name: str) -> Share:
        controller, wake = self._arbiter.controller, self._control.wake
        return Share(name, controller, wake, self._end_debtor)

    def _end_debtor(self, name: str, why: str) -> None:
        """End an engine unless it is in a step: that is judged by its signs of life."""
        if not self._control.is_in_step(name):
            self._managers[name].hangs(why)

    def _stepped(self, name: str, free_bytes: int, total_bytes: int) -> str:
        """Reason why an engine that has made its first step may not serve; empty if it may."""
        booked = self._config.device.memory - self._arbiter.controller.free_bytes
        starting = any(m.starts for other, m in self._managers.items() if other != name)
        why = self._outside.stepped(name, free_bytes, total_bytes, booked, starting)
        if told := self._outside.told(self._managers).get("outside"):
            parts = ", ".join(f"{one} {size(part)}" for one, part in told["engines"].items())
            left = size(max(0, told["left_bytes"]))
            say(f"memory outside grants: {parts}; {left} left beside device.memory")
        return why

    async def _over(self, name: str) -> None:
        """Forget a tenant's engine, which has ended."""
        self._outside.over(name)
        await self._tiers.dead(name)

    def _end_all(self, reason: str) -> None:
        """The device has failed."""
        for manager in self._managers.values():
            manager.device_failed(reason)

    def _leave_out_refused(self) -> None:
        """No engine is started for them, now or later: others may have their memory."""
        for name, why in self._refused.items():
            say(f"tenant {name!r} is not served: {why}")
            self._arbiter.controller.given_up(name)

    async def _listen(self) -> str:
        """First of all: a taken port shall not cost the start of all engines."""
        host, port = self._options.host, self._options.port
        try:
            return await self._router.start(host, port)
        except (OSError, UnicodeError) as error:  # the latter for a name that cannot be one
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"cannot listen on {host}:{port} ({reason}): choose another --host or --port"
            ) from None

    async def _sample(self) -> None:
        ready = time.monotonic()
        while True:
            self._registry.timeline.record(time.monotonic() - ready, self._registry.reports)
            self._tiers.watch(self._registry)
            await asyncio.sleep(INTERVAL_S)

    # -- stopping -----------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        """The first signal stops in order, the second one at once."""
        name, code = signal.Signals(number).name, EXIT_CODES[number]
        if not self._signal.done():
            say(f"{name}: stopping; once more to stop at once")
            self._signal.set_result(code)
            return
        for manager in self._managers.values():
            manager.kill()
        self._ready_file.remove()
        self._rundir.remove()
        os._exit(code)

    async def _stop(self) -> None:
        """Stop in this order: no request runs any more, the engines end, then what they talk to.

        Until the port is closed, whoever comes is told so.
        """
        self._ready_file.remove()
        await self._router.drain()
        await asyncio.gather(*(manager.stop() for manager in self._managers.values()))
        await self._control.stop()
        await self._tiers.stop()
        await self._router.stop()


class ManagedEngines:
    """Link from the control server to the engines' managers."""

    def __init__(
        self, managers: Mapping[str, EngineManager], no_room: Callable[[str, int, int], str]
    ) -> None:
        """`no_room` says why an engine may not serve, by the device's free bytes and all."""
        self._managers, self._no_room = managers, no_room

    def came(self, tenant: str, pid: int) -> None:
        self._managers[tenant].came(pid)

    def joined(self, tenant: str) -> None:
        self._managers[tenant].joined()

    def stepped(self, tenant: str, free_bytes: int, total_bytes: int) -> None:
        self._managers[tenant].stepped(self._no_room(tenant, free_bytes, total_bytes))

    async def lost(self, tenant: str, reason: str | None) -> None:
        await self._managers[tenant].lost(reason)

    def failed(self, tenant: str, error: str, fault: str) -> None:
        self._managers[tenant].failed(error, fault)

    def hangs(self, tenant: str, why: str) -> None:
        self._managers[tenant].hangs(why)


class Share:
    """A tenant's share of the device, for its manager; every change is decided upon at once.

    `end` ends the engine of the tenant that it names, and says why.
    """

    def __init__(
        self,
        name: str,
        controller: Controller,
        wake: Callable[[], None],
        end: Callable[[str, str], None],
    ) -> None:
        self._name, self._controller, self._wake = name, controller, wake
        self.end = end

    def lend(self) -> None:
        self._controller.given_up(self._name)
        self._wake()

    def keep(self) -> None:
        self._controller.awaited(self._name)
        self._wake()

    def is_free(self) -> bool:
        return self._controller.has_room(self._name)

    def debtors(self) -> list[Debtor]:
        return self._controller.debtors(time.monotonic())


def _device(config: Config, means: Means) -> Device:
    """The device; one of a kind that can fail is asked by a process of its own."""
    kind, index = config.device.kind, config.device.index
    if (program := means.device.get(kind)) is None:
        return Device(say=say)
    name = f"GPU {index}" if kind == "cuda" else "the device"
    ask = partial(asked, (*program, str(index)))
    return Device(name, ask, rest_s=means.rest_s, say=say)


def _compiles(config: Config) -> bool:
    """True if a first step may compile: on a GPU kernels do, whatever is said of steps."""
    return config.device.kind == "cuda" or config.device.compile


async def _tried(manager: EngineManager) -> EngineFailed | None:
    """Start an engine; what came of it if it does not start, told at once."""
    try:
        await manager.start()
    except EngineFailed as error:
        say(str(error))
        return error
    return None


async def _all_set(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


async def _together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all until all are done; the first error cancels the others and is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
