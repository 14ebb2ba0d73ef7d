"""`mirage serve`: puts all parts together, starts them, keeps them running, and ends them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from mirage.config import Config, ConfigError, Policy
from mirage.control.profiled import UNPROFILED, Profiled
from mirage.errors import CommandFailed, InputRefused
from mirage.processes.child import adopt_orphans
from mirage.processes.hangup import HangUps
from mirage.processes.reaper_client import ReaperClient
from mirage.processes.unread import unread_stderr
from mirage.samples import INTERVAL_S
from mirage.serve.access.server_keys import KeySource, ServerKeys
from mirage.serve.admin.bringing import Bringing
from mirage.serve.admin.declaring import Declaring
from mirage.serve.admin.explaining import Explaining
from mirage.serve.admin.one_server import sole_server
from mirage.serve.admin.overviewing import Overviewing
from mirage.serve.admin.server import AdminServer
from mirage.serve.admin.status import TenantsView
from mirage.serve.adoption.book import RunBook
from mirage.serve.adoption.left import LeftRun
from mirage.serve.apply.applier import ConfigApplier, Origin
from mirage.serve.apply.recorded import config_record
from mirage.serve.apply.reload import ReadAgain
from mirage.serve.apply.source import Written
from mirage.serve.clients.certificate import check_tls
from mirage.serve.device.domain import Domain
from mirage.serve.engines.errors import EngineFailed
from mirage.serve.engines.warm import WarmStarts
from mirage.serve.entry import MadeEntry, OwnAddress, RequestEntry
from mirage.serve.launch import launcher
from mirage.serve.launch.preflight import preflight, refusal
from mirage.serve.launch.programs import Means
from mirage.serve.launch.vllm_facts import PROBE
from mirage.serve.logs.logs import TO_STDERR, LogPlan
from mirage.serve.logs.progress import LOOKING, say, telling
from mirage.serve.rundir import resources
from mirage.serve.rundir.folders import RunDir
from mirage.serve.rundir.ready_file import ReadyFile
from mirage.serve.service.manager import ServiceManager
from mirage.serve.service.status import status_line
from mirage.serve.succession import device_name, run_record, succession
from mirage.serve.tasks import together
from mirage.serve.until_signal import UntilSignal, signals_exit

STARTUP_S = {"host": 300.0, "cuda": 900.0}
"""Most seconds for the start of an engine, by the kind of device. On a GPU tens of GB are read,
copied and registered, kernels are compiled and graphs captured.
"""
WARM_LOG = "@forks.log"
"""File name of the fork server's log; no tenant's log can have this name."""


@dataclass(frozen=True)
class ServeOptions:
    """Options of the command line, which add to the configuration."""

    host: str = "127.0.0.1"
    port: int = 8000
    ready_file: Path | None = None
    log_dir: Path | None = None
    startup_timeout_s: float | None = None
    """Most seconds for the start of an engine; None takes `STARTUP_S`."""
    all_or_nothing: bool = False
    """True if a tenant that cannot start ends the whole server."""
    keys: ServerKeys = field(default_factory=lambda: ServerKeys(KeySource()))
    logs: LogPlan = TO_STDERR
    sockets: Sequence[socket.socket] = ()
    """Sockets of the address that listen already."""
    service: ServiceManager = field(default_factory=ServiceManager)
    device: str = ""
    """Name of the device if the configuration has several; empty for the only one."""


class SaysReady(Protocol):
    """Receiver of the news that all is ready; `ReadyFile` is one."""

    def write(self, url: str) -> None:
        """Tell that the server is ready at `url`. Raises `ConfigError` if that fails for a reason
        that the user can correct."""

    def remove(self) -> None:
        """Tell that the server is no longer ready. Idempotent."""


def serve(
    config: Config,
    origin: Origin,
    options: ServeOptions,
    means: Means,
    profiled: Mapping[str, Profiled] = UNPROFILED,
) -> int:
    """Serve until a signal; return the exit code (0 on SIGTERM or when the terminal closes, 130 on
    SIGINT).

    `profiled` has the times of tenants' steps that the controller uses at first. Raises
    `ConfigError` for errors that the user can correct, before any engine starts. Raises
    `EngineFailed` if no engine gets ready or, with `all_or_nothing`, if one does not; all processes
    have ended by then.
    """
    ready = ReadyFile(options.ready_file)
    ready.prepare()
    resources.check_folders(options.log_dir)
    check_tls(config.http)
    own = partial(OwnAddress, logs=options.logs, passed=options.sockets)
    return serve_behind(own, config, origin, options, means, ready, profiled)


def serve_behind(
    entry: MadeEntry,
    config: Config,
    origin: Origin,
    options: ServeOptions,
    means: Means,
    ready: SaysReady,
    profiled: Mapping[str, Profiled],
) -> int:
    """Serve one device, whose requests come by `entry`. See `serve`."""
    with sole_server(config):
        return _serve(entry, config, origin, options, means, ready, profiled)


def _serve(
    entry: MadeEntry,
    declared: Config,
    origin: Origin,
    options: ServeOptions,
    means: Means,
    ready: SaysReady,
    profiled: Mapping[str, Profiled],
) -> int:
    hangups = HangUps()
    adopt_orphans()
    device = device_name(declared, origin.source.path)
    with ExitStack() as over:
        over.enter_context(unread_stderr())
        with signals_exit(hangups), telling(LOOKING, means.progress_s):
            taken = succession(declared, device)
            left = None if taken is None else taken.left
            rundir = over.enter_context(RunDir(options.log_dir, left and left.held))
            ready_file = options.ready_file
            reaper = over.enter_context(ReaperClient(*rundir.owned, ready_file=ready_file))
            means, warm = _warm(declared, rundir, reaper, means)
            if warm is not None:
                over.callback(warm.close)
            found = preflight(declared, means.probe) if taken is None else taken.found
        config, wanted = found.config, origin.written
        if taken is not None:
            declared, origin = taken.config, origin._replace(written=taken.written)
        if found.refused and options.all_or_nothing:
            raise refusal(found.refused)
        timeout_s = options.startup_timeout_s or STARTUP_S[config.device.kind]
        book = RunBook()
        if config.lease_s:
            told = config_record(origin.source, origin.written)
            record = run_record(device, rundir, config.lease_s, told, found)
            book = RunBook(rundir.record, record, reaper)
        domain = Domain(config, found, rundir, reaper, means, timeout_s, profiled, book, left)
        applier = ConfigApplier(origin, declared, found, domain, means.probe)
        view = TenantsView(
            config,
            domain.tenants.sections,
            domain.registry,
            domain.attendance,
            rundir.log,
            options.device,
            routers=lambda: domain.desk.guests,
            own_router=lambda: domain.desk.has_own,
        )
        overviewing = Overviewing(view, domain.registry, domain.loans)
        supervisor = Supervisor(
            config,
            options,
            rundir,
            domain,
            applier,
            view,
            overviewing,
            entry(config, domain, overviewing.encoded, rundir, reaper),
            ready,
            hangups,
            warm,
            wanted,
            left,
        )
        return asyncio.run(supervisor.run())


def _warm(
    config: Config, rundir: RunDir, reaper: ReaperClient, means: Means
) -> tuple[Means, WarmStarts | None]:
    """`means` with a function that starts engines, and the process that it forks them from.

    `means` is unchanged, and the process None, if `means` has a function already or `warm_starts`
    is off.
    """
    if means.start is not None or not config.starts_warm:
        return means, None
    environment = launcher.environment(config, rundir)
    log = rundir.logs / WARM_LOG
    warm = WarmStarts(rundir.warm_socket, environment, log, reaper)
    probe = means.probe if means.probe != PROBE else warm.address
    return replace(means, start=warm.start, probe=probe), warm


class Supervisor:
    """Run of a server with one device, from the first process to the last."""

    def __init__(
        self,
        config: Config,
        options: ServeOptions,
        rundir: RunDir,
        domain: Domain,
        applier: ConfigApplier,
        view: TenantsView,
        overviewing: Overviewing,
        address: RequestEntry,
        ready: SaysReady,
        hangups: HangUps,
        warm: WarmStarts | None,
        wanted: Written,
        left: LeftRun | None,
    ) -> None:
        """`wanted` is the configuration to serve. If the engines that were taken over serve another
        one, it is applied once `domain` serves.

        `left` is the run that is taken over, None for a new one.
        """
        self._wanted, self._left = wanted, left
        self._config, self._options, self._rundir = config, options, rundir
        self._warm = warm
        self._domain, self._applier = domain, applier
        self._ready, self._keys, self._address = ready, options.keys, address
        self._service = options.service
        self._again = ReadAgain(options.keys, domain.desk, applier)
        self._admin = AdminServer(
            view,
            domain.attendance,
            Declaring(applier, one_of_several=bool(options.device)),
            Explaining(domain.tenants.sections, domain.registry, domain.loans, applier.revision),
            overviewing,
            Bringing(domain.ahead, applier.revision),
            domain.registry.past,
            self._again.keys,
            self._again.ordered,
            domain.desk.seen,
            sleeps=config.policy is Policy.MIRAGE,
        )
        self._signals = UntilSignal(self, hangups, options.service)

    async def run(self) -> int:
        """Start, serve and stop; return the exit code. Raises `ConfigError` and `EngineFailed`, see
        `serve`."""
        return await self._signals.run()

    # -- starting and serving -----------------------------------------------------------

    async def serve(self) -> None:
        """Start the address, the device with its engines, and the operators' socket, and serve.
        Never returns: it fails or is cancelled."""
        begun = time.monotonic()
        url = await self._listen()
        if told := self._keys.told(time.time()):
            say(told)
        await self._listen_to_operators(url)
        served = self._domain.serve(all_or_nothing=self._options.all_or_nothing)
        hears = self._signals.hear_hangups(self._again.after_hangup)
        work = [served, self._say_ready(url, begun), self._admin.keep(), hears]
        work += [self._address.keep(), self._hear_router()]
        work.append(self._service.keep(lambda: self._domain.decisions, lambda: self._status(url)))
        if self._warm is not None:
            work.append(self._warm.keep(self._config.hang_s, say))
        if self._wanted != self._applier.wanted:
            work.append(self._apply_wanted())
        await together(work)

    async def _apply_wanted(self) -> None:
        """Apply the configuration file, after a takeover of engines that serve another
        configuration.
        """
        try:
            told = await self._applier.apply(lambda before: self._wanted)
        except (InputRefused, CommandFailed) as error:
            say(f"{self._wanted.path} is not applied, and what was served before is: {error}")
        else:
            say(f"{self._wanted.path}: {'; '.join(told.lines)}")

    async def _say_ready(self, url: str, begun: float) -> None:
        """Announce the server as ready once each first start has ended; then take samples. Never
        returns.

        Raises `EngineFailed` if no tenant could start.
        """
        await self._domain.tenants.started()
        managers, failures = self._domain.managers, self._domain.failures
        if managers and len(failures) == len(managers):
            if self._domain.device.reason:
                raise EngineFailed(self._domain.device.reason)
            why = "; ".join(str(failures[name]) for name in managers)
            raise EngineFailed(f"no tenant could start: {why}" if len(failures) > 1 else why)
        await self._domain.desk.connected()
        self._ready.write(url)
        self._service.ready()
        all_of_them, policy = len(self._config.tenants), self._config.policy.value
        started = len(managers) - len(failures)
        count = f"{all_of_them}" if started == all_of_them else f"{started} of {all_of_them}"
        took = time.monotonic() - begun
        say(f"ready at {url} in {took:.0f} s (policy {policy}, {count} tenants)")
        await self._sample()

    async def _listen(self) -> str:
        """Open the address before engines start, so that a taken port costs no start; return the
        URL.

        Raises `ConfigError` if it cannot listen there.
        """
        host, port = self._options.host, self._options.port
        try:
            url = await self._address.begin(host, port, self._keys.table, self._left)
        except (OSError, UnicodeError) as error:  # the latter for a name that cannot be one
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"cannot listen on {host}:{port} ({reason}): choose another --host or --port"
            ) from None
        if self._address.hears:
            self._looks_after_address()
        return url

    async def _hear_router(self) -> None:
        """Accept the connection of a router that a killed supervisor left, and send it a new table
        of tenants, once the engines of that supervisor have been taken over.

        Until then the router goes on with its old table. Does nothing for a router that this
        supervisor has started.
        """
        if not self._address.hears:
            await self._domain.serves()
            await self._address.hear(self._keys.table)
            self._looks_after_address()

    def _looks_after_address(self) -> None:
        for path, listen in self._address.listeners.items():
            self._domain.looks_after(path, listen)

    async def _listen_to_operators(self, url: str) -> None:
        """Open the admin socket. Raises `ConfigError` if it cannot be opened."""
        path = self._address.admin_socket
        try:
            await self._admin.start(path, url)
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot listen to operators ({error.strerror or error})"
            ) from None
        self._domain.looks_after(path, self._admin.site.listen)
        say(f"operators: --socket {path}")

    def _status(self, url: str) -> str:
        return status_line(url, (one.state for one in self._domain.registry.backends.values()))

    async def _sample(self) -> None:
        ready = time.monotonic()
        while True:
            self._domain.sample(time.monotonic() - ready)
            await asyncio.sleep(INTERVAL_S)

    # -- stopping -----------------------------------------------------------------------

    def stops(self) -> None:
        """Do nothing when the first signal comes: `stop` follows."""

    def kill(self) -> None:
        """Kill the router and all engines immediately, and remove the files of this run."""
        self._address.kill()
        self._domain.kill()
        self._ready.remove()
        self._rundir.remove()

    async def stop(self) -> None:
        """Stop in this order: admin socket, requests, the device with its engines, the address.

        New requests are refused with an answer until the address is closed.
        """
        self._ready.remove()
        await self._admin.stop()
        await self._address.drain()
        await self._domain.stop()
        await self._address.stop()
