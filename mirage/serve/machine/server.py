"""`mirage serve` of several devices: the address, its router, and a server process per device."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from mirage.config import Config, ConfigError
from mirage.machines.board import NewsBoard
from mirage.machines.keeper import DeviceEnded, DeviceKeeper
from mirage.machines.local import HERE, LocalMachines
from mirage.processes.hangup import HangUps
from mirage.processes.reaper_client import ReaperClient
from mirage.processes.unread import unread_stderr
from mirage.serve.admin.declaring import Declaring
from mirage.serve.adoption.book import RunBook
from mirage.serve.adoption.left import end_left
from mirage.serve.apply.reload import ReadAgain
from mirage.serve.apply.state_file import KeptState
from mirage.serve.clients.certificate import check_tls
from mirage.serve.device.caretaker import Caretaker
from mirage.serve.engines.errors import EngineFailed
from mirage.serve.launch.programs import Means
from mirage.serve.logs.progress import say
from mirage.serve.machine.admin import MachineAdmin
from mirage.serve.machine.applying import MachineApplier
from mirage.serve.machine.calls import DeviceCalls
from mirage.serve.machine.declared import DeclaredDevice, PlacedMachine
from mirage.serve.machine.move_book import MoveBook
from mirage.serve.machine.moving import MachineMoves
from mirage.serve.machine.nobody import no_overview, no_tiers, nobody
from mirage.serve.machine.ordering import device_order
from mirage.serve.machine.served_device import ServedDevice
from mirage.serve.registry.registry import DeviceSources, Registry
from mirage.serve.routing.address import ServedAddress
from mirage.serve.routing.desk import RouterDesk
from mirage.serve.rundir import resources
from mirage.serve.rundir.folders import RunDir, socket_name
from mirage.serve.rundir.ready_file import ReadyFile
from mirage.serve.supervisor import ServeOptions
from mirage.serve.tasks import together
from mirage.serve.until_signal import UntilSignal, signals_exit


def serve_devices(
    machine: PlacedMachine, state: KeptState, options: ServeOptions, means: Means
) -> int:
    """Serve several devices until a signal; return the exit code.

    Raises `ConfigError` for errors that the user can correct, and `EngineFailed` if no device's
    server gets ready or, with `all_or_nothing`, if one does not.
    """
    common = machine.declared.common
    ReadyFile(options.ready_file).prepare()
    resources.check_folders(options.log_dir)
    check_tls(common.http)
    hangups = HangUps()
    with ExitStack() as over:
        over.enter_context(unread_stderr())
        with signals_exit(hangups):
            rundir = over.enter_context(RunDir(options.log_dir))
            reaper = ReaperClient(*rundir.owned, ready_file=options.ready_file)
            over.enter_context(reaper)
        # The router ends with this process: no other process may keep its address.
        common = common.model_copy(update={"lease_s": 0.0})
        run = _run(machine, common, state, options, means, rundir, reaper, hangups)
        return asyncio.run(run)


async def _run(
    machine: PlacedMachine,
    common: Config,
    state: KeptState,
    options: ServeOptions,
    means: Means,
    rundir: RunDir,
    reaper: ReaperClient,
    hangups: HangUps,
) -> int:
    server = MachineServer(machine, common, state, options, means, rundir, reaper, hangups)
    return await server.run()


class MachineServer:
    """Run of a server of several devices. It is created inside a running event loop."""

    def __init__(
        self,
        machine: PlacedMachine,
        common: Config,
        state: KeptState,
        options: ServeOptions,
        means: Means,
        rundir: RunDir,
        reaper: ReaperClient,
        hangups: HangUps,
    ) -> None:
        """`common` has the sections that hold for all devices."""
        self._machine, self._devices = machine, machine.devices
        self._common, self._options = common, options
        self._means, self._rundir, self._reaper = means, rundir, reaper
        self._keys, self._service = options.keys, options.service
        board = NewsBoard()
        sockets = {one.name: self._socket("device", one.name) for one in self._devices}
        self._keepers = [self._keeper(device, board) for device in self._devices]
        self.machines = LocalMachines(self._keepers, sockets, rundir.path / "facts", board)
        self._book = MoveBook()
        sources = DeviceSources(
            server_ends=lambda: {one.name: one.ends for one in self._keepers},
            moves=lambda: self._book.results,
        )
        registry = Registry(common.policy, 0, {}, sources)
        self._desk = RouterDesk(registry, nobody(), common.hang_s)
        lines = {one.name: self._socket("line", one.name) for one in self._devices}
        self._address = ServedAddress(
            common,
            registry,
            self._desk,
            no_tiers,
            no_overview,
            rundir,
            reaper,
            RunBook(),
            options.logs,
            options.sockets,
            lines,
        )
        self._calls = {name: DeviceCalls(name, socket) for name, socket in sockets.items()}
        self._served = {keeper.name: self._device(keeper) for keeper in self._keepers}
        self._moves = MachineMoves(self._served, machine.declared.file.placement, self._book, say)
        self._moves.knows(machine.facts, machine.scenes)
        applier = MachineApplier(self._served, machine, self._moves, means.probe, self._desk, state)
        self._again = ReadAgain(options.keys, self._desk, applier)
        self._admin = MachineAdmin(
            self._calls, Declaring(applier), self._book, common.policy, self._again.keys
        )
        self._ready_file = ReadyFile(options.ready_file)
        self._signals = UntilSignal(self, hangups, options.service)

    def _socket(self, kind: str, device: str) -> Path:
        return self._rundir.sockets / socket_name(kind, device)

    async def run(self) -> int:
        """Start, serve and stop; return the exit code. Raises `ConfigError` and `EngineFailed`, see
        `serve_devices`."""
        return await self._signals.run()

    async def serve(self) -> None:
        """Start the address, the operators' socket and the device servers, and serve. Never
        returns: it fails or is cancelled."""
        begun = time.monotonic()
        url = await self._listen()
        if told := self._keys.told(time.time()):
            say(told)
        path = self._address.admin_socket
        await self._admin.start(path, url)
        say(f"operators: --socket {path}")
        listeners = {**self._address.listeners, path: self._admin.site.listen}
        for name, device in self._served.items():
            await self.machines.start(name, HERE, device.order_at(url))
        work = [self.machines.keep(), self._address.keep()]
        work.append(Caretaker(self._rundir, {}, listeners).keep())
        hears = self._signals.hear_hangups(self._again.after_hangup)
        work += [self._say_ready(url, begun), hears, self._move()]
        # The watchdog watches this event loop alone: here keepers end device servers that hang.
        work.append(self._service.keep(time.monotonic_ns, lambda: self._status(url)))
        await together(work)

    async def _listen(self) -> str:
        """Open the address before engines start, so that a taken port costs no start; return the
        URL.

        Raises `ConfigError` if it cannot listen there.
        """
        host, port = self._options.host, self._options.port
        try:
            return await self._address.start(host, port, self._keys.table)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"cannot listen on {host}:{port} ({reason}): choose another --host or --port"
            ) from None

    def _device(self, keeper: DeviceKeeper) -> ServedDevice:
        name, rundir = keeper.name, self._rundir
        device = next(one for one in self._devices if one.name == name)
        order = device_order(
            device,
            self._options,
            self._socket("line", name),
            self._socket("device", name),
            rundir.logs / name if rundir.keeps_logs else None,
        )
        declared = self._machine.declared
        return ServedDevice(keeper, order, self._calls[name], declared, device.tenants)

    def _keeper(self, device: DeclaredDevice, board: NewsBoard) -> DeviceKeeper:
        ssd = self._common.tiers.ssd
        return DeviceKeeper(
            device.name,
            self._rundir.path / f"{device.name}.json",
            partial(end_left, device.identity),
            self._means.device_server,
            self._reaper,
            self._common.hang_s,
            ssd.save_s if ssd is not None and ssd.keep else 0.0,
            say,
            board,
        )

    async def _say_ready(self, url: str, begun: float) -> None:
        """Announce the server as ready, once each device is ready or has failed to start.

        Raises `ConfigError` if a device's configuration is refused, `EngineFailed` if no device can
        start, or if one cannot and `all_or_nothing` is set.
        """
        failures = {}
        for keeper in self._keepers:
            try:
                await keeper.first
            except DeviceEnded as error:
                if error.refused:
                    raise ConfigError(f"device {keeper.name!r}: {error}") from None
                failures[keeper.name] = str(error)
        if failures and (self._options.all_or_nothing or len(failures) == len(self._keepers)):
            raise EngineFailed("; ".join(f"device {n!r}: {why}" for n, why in failures.items()))
        for name, why in failures.items():
            say(f"device {name!r} is not served, and is tried again: {why}")
        await self._desk.connected()
        self._ready_file.write(url)
        self._service.ready()
        there, every = len(self._keepers) - len(failures), len(self._keepers)
        count = f"{every}" if there == every else f"{there} of {every}"
        say(f"ready at {url} in {time.monotonic() - begun:.0f} s ({count} devices)")

    async def _move(self) -> None:
        """Let models move, once each device is ready or has failed to start. Never returns."""
        await asyncio.wait([keeper.first for keeper in self._keepers])
        await self._moves.keep()

    def _status(self, url: str) -> str:
        """Status line for the service manager."""
        there = sum(keeper.is_ready for keeper in self._keepers)
        return f"{url}: {there} of {len(self._keepers)} devices are ready"

    # -- stopping -----------------------------------------------------------------------

    def stops(self) -> None:
        """Note that the first signal has come: if a device server ends from now on, the engines
        that it leaves are ended immediately."""
        self.machines.stops()

    def kill(self) -> None:
        """Kill the router and all device servers immediately, and remove the files of this run."""
        self._address.kill()
        self.machines.kill()
        self._ready_file.remove()
        self._rundir.remove()

    async def stop(self) -> None:
        """Stop in this order: admin socket, requests, devices with their engines, the address."""
        self._ready_file.remove()
        self.machines.stops()
        await self._admin.stop()
        await self._address.drain()
        await self.machines.stop()
        await self._address.stop()
