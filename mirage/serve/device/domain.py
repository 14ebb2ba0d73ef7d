"""A device with all that belongs to it: its deciding object, tiers, sockets and engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from mirage.config import Config, TenantSection
from mirage.control.arbiter import Arbiter
from mirage.control.liveness import FIRST_STEP_S
from mirage.control.profiled import UNPROFILED, Profiled
from mirage.control.roster.states import LifeEvent, LifeState
from mirage.keeper.messages import keeper_beside
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.adoption.book import RunBook
from mirage.serve.adoption.left import LeftRun
from mirage.serve.adoption.takeover import Takeover
from mirage.serve.device.caretaker import Caretaker, Listen
from mirage.serve.device.changes import DomainChange, TenantChanges
from mirage.serve.device.control_server import ControlServer
from mirage.serve.device.managed_engines import ManagedEngines, Share
from mirage.serve.device.tenants import DeviceTenants
from mirage.serve.device.tiers import TierPool
from mirage.serve.device.weights_keeper import WeightsKeeper
from mirage.serve.engines.manager import EngineManager
from mirage.serve.fit.fit import Fit
from mirage.serve.fit.outside_grants import Outside
from mirage.serve.health.device_health import DeviceHealth, asked
from mirage.serve.launch.preflight import Preflight, speeds
from mirage.serve.launch.programs import Means
from mirage.serve.logs.progress import say
from mirage.serve.models.weights_ahead import WeightsAhead
from mirage.serve.registry.registry import DeviceSources, Registry
from mirage.serve.roster.attendance import Attendance
from mirage.serve.roster.declared import roster_of
from mirage.serve.routing.desk import RouterDesk
from mirage.serve.rundir.folders import RunDir
from mirage.serve.tasks import Crew, together
from mirage.units import size


class Domain:
    """A device: its arbiter and ledger, its tiers below, its control socket, its engines.

    A server has one domain; several domains in one process share no state. `registry` has the facts
    about its tenants, `failures` the errors of their first starts, by tenant.
    """

    def __init__(
        self,
        config: Config,
        found: Preflight,
        rundir: RunDir,
        reaper: ReaperClient,
        means: Means,
        startup_timeout_s: float,
        profiled: Mapping[str, Profiled] = UNPROFILED,
        book: RunBook | None = None,
        left: LeftRun | None = None,
    ) -> None:
        """`config` has the device, its tenants and their sharing, `rundir` the sockets.

        `profiled` has the times of tenants' steps that the controller uses at first. `book` is the
        record of this run; `left` is a run whose engines and folders this device takes over.
        """
        self.book, self._left = book or RunBook(), left
        self._config, self._rundir, self._reaper = config, rundir, reaper
        self._means, self._startup_timeout_s = means, startup_timeout_s
        self._arbiter = Arbiter.of(config, profiled=profiled)
        self.loans = self._arbiter.loans
        self.tiers = TierPool(config, rundir.tier_socket)
        keeper_socket = keeper_beside(rundir.control_socket)
        self.weights = WeightsKeeper(config, keeper_socket, reaper, self._keeps, say, self.book)
        self._outside = Outside(config.device.memory, means.margin_bytes)
        self.device = _device(config, means, self._end_all)
        self.ahead = WeightsAhead(lambda: self._config.weights, say)
        sources = DeviceSources(
            self.tiers.state,
            self.tiers.disk,
            self._outside.told,
            self._arbiter.controller.why,
            self.device.told,
            self.weights,
            lambda: self.loans.totals(time.monotonic()),
            self._arbiter,
            lambda: self.attendance,
            ahead=self.ahead,
        )
        self.registry = Registry(config.policy, config.device.memory, {}, sources)
        self.tenants = DeviceTenants(self.registry, rundir)
        self.managers, self.failures = self.tenants.managers, self.tenants.failures
        self.attendance = self._attendance(config, found)
        self.desk = RouterDesk(self.registry, self.attendance, config.hang_s)
        self._control = ControlServer(
            self._arbiter,
            self.registry,
            ManagedEngines(self.managers, self._stepped, self.attendance),
            hang_s=config.hang_s,
            first_step_s=FIRST_STEP_S if _compiles(config) else 0.0,
            on_host=config.device.kind == "host",
            lease_s=config.lease_s,
        )
        self._sockets: dict[Path, Listen] = {
            rundir.control_socket: self._listen_to_engines,
            rundir.tier_socket: self.tiers.listen,
            keeper_socket: self.weights.listen,
        }
        self._caretaker = Caretaker(rundir, self.managers, self._sockets)
        self._crew = Crew()
        """Tasks: one keeps each tenant's engine, by its name; others remove tenants."""
        for tenant in config.tenants:
            adapters = found.adapters.get(tenant.name, {})
            if tenant.name in found.fits:
                self._make(tenant, found.fits[tenant.name], adapters)
            else:
                self.tenants.refuse(tenant, found.refused[tenant.name], adapters)
        self._serving = asyncio.Event()
        self._changes = TenantChanges(
            self.tenants,
            self._arbiter,
            self.tiers,
            self.weights,
            self.attendance,
            self._make_and_keep,
            self.gone,
        )

    # -- one tenant ---------------------------------------------------------------------

    def _make(self, tenant: TenantSection, fit: Fit, adapters: Mapping[str, str]) -> None:
        """Create the engine manager of a tenant and enter it in `tenants`, with its share and
        adapters. No process starts. `_unmake` undoes it."""
        manager = EngineManager(
            self._config,
            tenant,
            fit,
            self._rundir,
            self._reaper,
            self._startup_timeout_s,
            self._means,
            self._caretaker.mend,
            self._over,
            lambda: self._control.running.seconds,
            self.device,
            lambda: self._control.had_requests(tenant.name),
            self.book,
            self.desk.ended,
            self.desk.seen,
        )
        self.tenants.make(tenant, manager, self._share(tenant.name), adapters)

    def _make_and_keep(self, tenant: TenantSection, change: DomainChange) -> None:
        """Create a new tenant while others are served, and begin the task that keeps its engine
        running.
        """
        name = tenant.name
        self._make(tenant, change.fits[name], change.adapters[name])
        if not self.attendance.roster.members[name].eager:
            self.tenants.starts[name].set()
        self._crew.begin(name, self._keep(name))

    async def _unmake(self, name: str) -> None:
        """Remove all objects of a removed tenant whose engine has ended."""
        if name in self.managers:
            await self._crew.end(name)
            await self.managers[name].stop()
            await self._control.parted(name)
            await self.tiers.dead(name)
        self._arbiter.removed(name)
        await self.tiers.remove(name)
        self.weights.forget(name)
        self.tenants.unmake(name)
        say(f"{name}: removed")

    def gone(self, name: str) -> None:
        """Begin to remove a tenant that has no engine any more; see `Acts`."""
        self._crew.begin(_unmaking(name), self._unmake(name))

    # -- tenants that become others -----------------------------------------------------

    @property
    def config(self) -> Config:
        """Present configuration, with numbers for shares that are ``auto``."""
        return self._config

    async def room_for(self, names: Iterable[str]) -> None:
        """Wait until tenants with these names may be added: the device serves (see `serves`), and
        removed tenants of these names are gone. The wait has no time-out.
        """
        await self._serving.wait()
        await self._crew.ended([_unmaking(name) for name in names])

    def apply(self, change: DomainChange) -> None:
        """Remove tenants, and add tenants or declare them anew, as `change` says. `room_for` has to
        be called before.
        """
        self._config = change.config
        self._changes.apply(change)

    async def adapted(self, names: Iterable[str]) -> None:
        """Return when the engines of these tenants have their declared adapters, but for those that
        cannot be loaded; see `TenantAdapters.settled`.
        """
        for name in names:
            if (manager := self.managers.get(name)) is not None:
                await manager.adapters.settled()

    async def _listen_to_engines(self) -> bool:
        await self._control.listen(self._rundir.control_socket)
        return True

    def looks_after(self, socket: Path, listen: Listen) -> None:
        """Let the caretaker keep another socket of the run's folder; `listen` makes it again."""
        self._sockets[socket] = listen

    # -- serving ------------------------------------------------------------------------

    async def serve(self, *, all_or_nothing: bool) -> None:
        """Start engines as the roster orders, and keep them running. Never returns: it fails or is
        cancelled.

        With `all_or_nothing` it raises `EngineFailed` if the first start of a tenant fails.
        """
        adopted = await self._open()
        self._leave_out_refused()
        work = [self._control.watch(), self._caretaker.keep(), self.device.keep()]
        work.append(self._crew.keep())
        work += [self.weights.keep(), self._attend(adopted)]
        if all_or_nothing:
            work.append(self.tenants.all_start())
        for name in self.managers:
            self._crew.begin(name, self._keep(name))
        self._serving.set()
        try:
            await together(work)
        finally:
            await self._crew.stop()

    async def _open(self) -> list[str]:
        """Listen for engines, and start the tiers and the keeper of weights; return the tenants
        whose engines were taken over from another server.
        """
        if self._left is None:
            self._begin_record()
            await self._control.start(self._rundir.control_socket)
            self.tiers.start()
            self.weights.start()
            return []
        roster, reports = self.attendance.roster, self.registry.reports
        takeover = Takeover(self._left, self.managers, roster, reports, say)
        self._rundir.takes()
        self._reaper.owns(*self._rundir.folders)
        self._begin_record()
        await takeover.begin(self.weights)
        await self._control.open(self._rundir.control_socket)
        self.tiers.start()
        self.weights.start()
        adopted = await takeover.finish(self._control.goes_on)
        self._control.begin()
        return adopted

    def _begin_record(self) -> None:
        self.book.starts()
        self._reaper.leases(self._config.lease_s)

    async def serves(self) -> None:
        """Return when engines of another server have been taken over, and others may start."""
        await self._serving.wait()

    @property
    def decisions(self) -> int:
        """Number of decisions about the device's memory so far."""
        return self._control.decisions

    @property
    def free_bytes(self) -> int:
        """Bytes of the device that none of its engines holds or may come to hold."""
        return self._arbiter.controller.free_bytes

    def _leave_out_refused(self) -> None:
        """Log the refused tenants, and free their shares for others: no engine is started for
        them.
        """
        for name, why in self.tenants.refused.items():
            say(f"tenant {name!r} is not served: {why}")
            self._arbiter.controller.given_up(name)

    def _share(self, name: str) -> Share:
        return Share(
            name,
            self._arbiter.controller,
            self._control.wake,
            self._end_debtor,
            self.attendance,
            partial(self.tenants.has_started, name),
            self.weights.kept,
        )

    # -- tenants that come and go ---------------------------------------------------------

    def _attendance(self, config: Config, found: Preflight) -> Attendance:
        link = speeds(config.device).link
        roster = roster_of(config, found.fits, link, time.monotonic())
        changed = lambda: self.desk.changed()  # noqa: E731
        return Attendance(roster, self, say, device=self.device, changed=changed)

    async def _attend(self, adopted: Collection[str]) -> None:
        """Let tenants sleep and wake as requests need them. Never returns.

        First starts are those that the roster orders immediately; all other tenants, also `adopted`
        ones, count as started.
        """
        for name in self.managers.keys() - adopted:
            self._arbiter.controller.given_up(name)
        self.attendance.settle()
        for name, member in self.attendance.roster.members.items():
            if member.state is LifeState.STARTING:
                self.registry.backends[name].missed = True
            else:
                self.tenants.starts[name].set()
        await self.attendance.keep()

    async def _keep(self, name: str) -> None:
        await self.managers[name].keep(self.tenants.shares[name])

    def start(self, name: str) -> None:
        """Call for a start of the tenant's engine: it follows once others have given back its
        share, or enough of it for a hollow start; see `Acts`.
        """
        self.weights.starts(name)
        self.tenants.shares[name].call()

    def stop_one(self, name: str, why: str) -> None:
        """End the tenant's engine, or cancel its start; `why` is the reason to log, empty for
        none.
        """
        if self.tenants.shares[name].recall():
            self.tenants.starts[name].set()
            self.attendance.heard(name, LifeEvent.ENDED)
        else:
            self.managers[name].stops(why)

    def sleep(self, name: str) -> None:
        """Have the tenant's engine give all memory that it can; see `Acts`."""
        self._control.puts_to_sleep(name)

    def wake(self, name: str) -> None:
        """Give the tenant its share again; see `Acts`."""
        self._control.wakes(name)

    def _keeps(self, name: str, kept: bool) -> None:
        """Note that a tenant's weights are in host memory from now on (`kept`), or no longer."""
        if name in self.attendance.roster.members:
            self.attendance.roster.kept(name, kept=kept)

    def shows(self, name: str, state: LifeState) -> None:
        """Note that a tenant has entered another state; see `Acts`."""
        self.registry.backends[name].enters(state)
        self.registry.moved.set()

    def _end_debtor(self, name: str, why: str) -> None:
        """End an engine that owes memory, unless it is in a step: a step that hangs is noticed by
        the engine's missing signs of life.
        """
        if not self._control.is_in_step(name):
            self.managers[name].hangs(why)

    def _stepped(self, name: str, free_bytes: int, total_bytes: int) -> str:
        """Reason why an engine that has made its first step may not serve; empty if it may."""
        booked = self._config.device.memory - self.free_bytes
        starting = any(m.starts for other, m in self.managers.items() if other != name)
        why = self._outside.stepped(name, free_bytes, total_bytes, booked, starting)
        if told := self._outside.told(self.managers).get("outside"):
            parts = ", ".join(f"{one} {size(part)}" for one, part in told["engines"].items())
            left = size(max(0, told["left_bytes"]))
            say(f"memory outside grants: {parts}; {left} left beside device.memory")
        return why

    async def _over(self, name: str) -> None:
        """Note that all processes of a tenant's engine have ended: its memory outside grants is
        forgotten, and its blocks in the tiers are no longer pinned.
        """
        self._outside.over(name)
        await self.tiers.dead(name)

    def _end_all(self, reason: str) -> None:
        """End all engines, because the device has failed for this `reason`."""
        for manager in self.managers.values():
            manager.device_failed(reason)
        self.attendance.device_failed()

    def sample(self, seconds: float) -> None:
        """Take a sample of memory and rates, `seconds` after the start, and tell the host pool the
        tenants whose priority class has changed.
        """
        self.registry.timeline.record(seconds, self.registry.reports)
        self.registry.pace.look(seconds, self.registry.reports)
        self.tiers.watch(self.registry)

    # -- stopping -----------------------------------------------------------------------

    async def stop(self) -> None:
        """End the engines, then stop the servers that they use. Idempotent."""
        await asyncio.gather(*(manager.stop() for manager in self.managers.values()))
        await self._control.stop()
        await self.tiers.stop()
        await self.weights.stop()

    def kill(self) -> None:
        """Kill the engines immediately, and end their lease, so that none outlives this process."""
        self._reaper.leases(0.0)
        for manager in self.managers.values():
            manager.kill()


def _unmaking(name: str) -> tuple[str, str]:
    return ("unmake", name)


def _device(config: Config, means: Means, failing: Callable[[str], None]) -> DeviceHealth:
    """Health of the device; one of a kind that can fail is tried by a process of its own."""
    kind, index = config.device.kind, config.device.index
    if (program := means.device.get(kind)) is None:
        return DeviceHealth(failing=failing, say=say)
    name = f"GPU {index}" if kind == "cuda" else "the device"
    ask = partial(asked, (*program, str(index)))
    return DeviceHealth(name, ask, failing=failing, rest_s=means.rest_s, say=say)


def _compiles(config: Config) -> bool:
    """True if a first step may take long to compile: on a GPU kernels are compiled in any case."""
    return config.device.kind == "cuda" or config.device.compile
