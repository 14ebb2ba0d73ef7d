"""`mirage serve` of several devices: the address, a router, and a server process for each."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mirage.config import Config, ConfigError
from mirage.errors import InputRefused
from mirage.machines.board import NewsBoard
from mirage.machines.keeper import DeviceEnded, DeviceKeeper
from mirage.machines.local import HERE, LocalMachines
from mirage.processes.hangup import HangUps
from mirage.processes.reaper_client import ReaperClient
from mirage.processes.unread import unread_stderr
from mirage.serve import files
from mirage.serve.adoption.book import RunBook
from mirage.serve.adoption.left import end_left
from mirage.serve.apply.recorded import config_record
from mirage.serve.caretaker import Caretaker
from mirage.serve.clients.certificate import check_tls
from mirage.serve.errors import EngineFailed
from mirage.serve.machine.admin import MachineAdmin
from mirage.serve.machine.declared import DeclaredDevice, DeclaredMachine
from mirage.serve.machine.nobody import no_overview, no_tiers, nobody
from mirage.serve.machine.order import DeviceOrder
from mirage.serve.means import Means
from mirage.serve.ready_file import ReadyFile
from mirage.serve.registry import DeviceSources, Registry
from mirage.serve.routing.address import ServedAddress
from mirage.serve.routing.desk import RouterDesk
from mirage.serve.rundir import RunDir, socket_name
from mirage.serve.said import say
from mirage.serve.succession import device_name
from mirage.serve.supervisor import EXIT_CODES, HANG_UP_S, ServeOptions, signals_exit
from mirage.serve.together import together


def serve_devices(machine: DeclaredMachine, options: ServeOptions, means: Means) -> int:
    """Serve until a signal; the exit code. Raises as `serve` does."""
    common = machine.devices[0].config
    ReadyFile(options.ready_file).prepare()
    files.check_folders(options.log_dir)
    check_tls(common.http)
    hangups = HangUps()
    with ExitStack() as over:
        over.enter_context(unread_stderr())
        with signals_exit(hangups):
            rundir = over.enter_context(RunDir(options.log_dir))
            reaper = ReaperClient(*rundir.owned, ready_file=options.ready_file)
            over.enter_context(reaper)
        # The router goes with this process: its address is nobody's else.
        common = common.model_copy(update={"lease_s": 0.0})
        run = _run(machine.devices, common, options, means, rundir, reaper, hangups)
        return asyncio.run(run)


async def _run(
    devices: Sequence[DeclaredDevice],
    common: Config,
    options: ServeOptions,
    means: Means,
    rundir: RunDir,
    reaper: ReaperClient,
    hangups: HangUps,
) -> int:
    server = MachineServer(devices, common, options, means, rundir, reaper, hangups)
    return await server.run()


class MachineServer:
    """One run, from the first process to the last. Made where an event loop runs."""

    def __init__(
        self,
        devices: Sequence[DeclaredDevice],
        common: Config,
        options: ServeOptions,
        means: Means,
        rundir: RunDir,
        reaper: ReaperClient,
        hangups: HangUps,
    ) -> None:
        """`common` has the sections that hold for all devices."""
        self._devices, self._common, self._options = devices, common, options
        self._means, self._rundir, self._reaper, self._hangups = means, rundir, reaper, hangups
        self._keys, self._service = options.keys, options.service
        board = NewsBoard()
        sockets = {one.name: self._socket("device", one.name) for one in devices}
        self._keepers = [self._keeper(device, board) for device in devices]
        self.machines = LocalMachines(self._keepers, sockets, rundir.path / "facts", board)
        sources = DeviceSources(server_ends=lambda: {one.name: one.ends for one in self._keepers})
        registry = Registry(common.policy, 0, {}, sources)
        self._desk = RouterDesk(registry, nobody(), common.hang_s)
        lines = {one.name: self._socket("line", one.name) for one in devices}
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
        self._admin = MachineAdmin(
            sockets,
            common.policy,
            self._reload_keys,
        )
        self._ready_file = ReadyFile(options.ready_file)
        self._hung_up = asyncio.Event()
        self._signal: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def _socket(self, kind: str, device: str) -> Path:
        return self._rundir.sockets / socket_name(kind, device)

    async def run(self) -> int:
        """Start, serve, stop. See `serve_devices` for what it returns and raises."""
        loop = asyncio.get_running_loop()
        for number in EXIT_CODES.keys() - {signal.SIGHUP}:
            loop.add_signal_handler(number, self._on_signal, number)
        if not self._hangups.ignored:
            loop.add_signal_handler(signal.SIGHUP, self._hung_up.set)
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

    async def _serve(self) -> None:
        """Never returns: it fails or is cancelled."""
        begun = time.monotonic()
        url = await self._listen()
        if told := self._keys.told(time.time()):
            say(told)
        path = self._address.admin_socket
        await self._admin.start(path, url)
        say(f"operators: --socket {path}")
        listeners = {**self._address.listeners, path: self._admin.site.listen}
        for device in self._devices:
            order = msgspec.json.encode(self._order(device, url))
            await self.machines.start(device.name, HERE, order)
        work = [self.machines.keep(), self._address.keep()]
        work.append(Caretaker(self._rundir, {}, listeners).keep())
        work += [self._say_ready(url, begun), self._hear_hangups()]
        # Device servers that hang are ended by their keepers, in the event loop that tells this.
        work.append(self._service.keep(time.monotonic_ns, lambda: self._status(url)))
        await together(work)

    async def _listen(self) -> str:
        """First of all: a taken port shall not cost the start of all engines."""
        host, port = self._options.host, self._options.port
        try:
            return await self._address.start(host, port, self._keys.table)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"cannot listen on {host}:{port} ({reason}): choose another --host or --port"
            ) from None

    def _order(self, device: DeclaredDevice, url: str) -> DeviceOrder:
        options, name = self._options, device.name
        logs = self._rundir.logs / name if self._rundir.keeps_logs else None
        return DeviceOrder(
            name,
            config_record(device.source, device.written),
            device.source.lease_s,
            options.host,
            url,
            str(self._socket("line", name)),
            str(self._socket("device", name)),
            None if logs is None else str(logs),
            options.startup_timeout_s,
            options.all_or_nothing,
            logging.getLogger("mirage").getEffectiveLevel(),
            options.logs.form,
            None if options.logs.file is None else str(options.logs.file.absolute()),
        )

    def _keeper(self, device: DeclaredDevice, board: NewsBoard) -> DeviceKeeper:
        ssd, identity = self._common.tiers.ssd, device_name(device.config, device.source.path)
        return DeviceKeeper(
            device.name,
            self._rundir.path / f"{device.name}.json",
            partial(end_left, identity),
            self._means.device_server,
            self._reaper,
            self._common.hang_s,
            ssd.save_s if ssd is not None and ssd.keep else 0.0,
            say,
            board,
        )

    async def _say_ready(self, url: str, begun: float) -> None:
        """Say that all is ready once each device is, or cannot be."""
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

    def _status(self, url: str) -> str:
        """Line for the service manager."""
        there = sum(keeper.is_ready for keeper in self._keepers)
        return f"{url}: {there} of {len(self._keepers)} devices are ready"

    # -- keys and certificate again -----------------------------------------------------

    async def _hear_hangups(self) -> None:
        """Stop with the terminal; where somebody else sent SIGHUP, read what can be read again."""
        while True:
            await self._hung_up.wait()
            self._service.reloading()
            await asyncio.sleep(HANG_UP_S)
            self._hung_up.clear()
            if self._hangups.terminal_is_gone:
                self._on_signal(signal.SIGHUP)
                continue
            await self._again()
            say("SIGHUP: with several devices the file itself is read at the next start alone")
            self._service.reloaded()

    async def _again(self) -> None:
        try:
            if self._keys.table.keys is not None:
                say(f"SIGHUP: {await self._reload_keys()}")
            if (tls := self._common.http.tls) is not None:
                await asyncio.to_thread(check_tls, self._common.http)
                self._desk.renews()
                await self._desk.seen()
                say(f"SIGHUP: certificate: {tls.certificate}")
        except InputRefused as error:
            say(f"SIGHUP: keys or certificate stay as they were: {error}")

    async def _reload_keys(self) -> str:
        """Have the keys that their source has now; a line about them. Raises `InputRefused`."""
        line = await self._keys.again()
        self._desk.holds(self._keys.table)
        await self._desk.seen()
        return line

    # -- stopping -----------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        """The first signal stops in order, the second one at once."""
        name, code = signal.Signals(number).name, EXIT_CODES[number]
        if not self._signal.done():
            say(f"{name}: stopping; once more to stop at once")
            self.machines.stops()
            self._signal.set_result(code)
            return
        self._address.kill()
        self.machines.kill()
        self._ready_file.remove()
        self._rundir.remove()
        os._exit(code)

    async def _stop(self) -> None:
        """Stop in this order: who acts, who asks, the devices with their engines, the address."""
        self._service.stopping()
        self._ready_file.remove()
        self.machines.stops()
        await self._admin.stop()
        await self._address.drain()
        await self.machines.stop()
        await self._address.stop()
