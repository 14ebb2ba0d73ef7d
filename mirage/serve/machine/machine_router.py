"""Router of one machine for the devices of all machines, as a process without a parent.

``python -m mirage.serve.machine.machine_router ORDER SOCKET EPOCH LEASE_S``. Devices are behind
doors, whose addresses a controller tells; without a controller the router keeps the last ones.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from mirage.config import Config
from mirage.errors import CommandFailed
from mirage.machines.tether import Tether
from mirage.processes.child import adopt_orphans
from mirage.processes.reaper_client import ReaperClient
from mirage.processes.unread import unread_stderr
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.server_keys import ServerKeys
from mirage.serve.adoption.book import RunBook
from mirage.serve.adoption.record import ConfigRecord
from mirage.serve.apply.source import ConfigSource, Written
from mirage.serve.caretaker import Caretaker
from mirage.serve.logs import LogFormat
from mirage.serve.machine.nobody import no_overview, no_tiers, nobody
from mirage.serve.machine.tethered import OrderedKeys, beats, by_order
from mirage.serve.openai import errors_as_json
from mirage.serve.private_site import PrivateSite
from mirage.serve.registry import DeviceSources, Registry
from mirage.serve.routed.messages import LINE, Beyond
from mirage.serve.routing.address import ServedAddress
from mirage.serve.routing.desk import RouterDesk
from mirage.serve.rundir import RunDir
from mirage.serve.together import together

PROGRAM = ("-m", "mirage.serve.machine.machine_router")
DOORS = "/doors"
"""Route of the router's admin socket to read and to set the URLs of the devices' doors."""


class RouterOrder(msgspec.Struct, frozen=True):
    """Order to start the router of a machine."""

    device: str
    """Name of the server at its agent, as a device's server has one."""
    machine: str
    config: ConfigRecord
    """Configuration with the sections that hold for all devices."""
    host: str
    port: int
    keys: tuple[AccessKey, ...]
    """Keys that clients may use."""
    token: str
    """Token of the key that opens the doors of devices."""
    doors: dict[str, str]
    """URLs of the doors of all devices, by device; empty if not known yet."""
    log_level: int
    log_format: LogFormat


class DoorsTold(msgspec.Struct, frozen=True):
    """Answer of ``GET /doors``, and body of ``PUT /doors``."""

    url: str
    """URL of the router itself."""
    doors: dict[str, str]


class MachineRouter:
    """Run of a machine's router. It is created inside a running event loop."""

    def __init__(
        self,
        order: RouterOrder,
        config: Config,
        tether: Tether,
        rundir: RunDir,
        reaper: ReaperClient,
    ) -> None:
        self._order, self._tether, self._rundir = order, tether, rundir
        registry = Registry(config.policy, 0, {}, DeviceSources())
        self._desk = RouterDesk(registry, nobody(), config.hang_s)
        self._desk.opens(order.doors)
        self._doors = order.doors
        self._keys = ServerKeys(OrderedKeys(keys=order.keys))
        self._address = ServedAddress(
            config,
            registry,
            self._desk,
            no_tiers,
            no_overview,
            rundir,
            reaper,
            RunBook(),
            devices=dict.fromkeys(order.doors, Path(LINE)),
            beyond=Beyond(order.machine, order.token),
        )
        self._site = PrivateSite()

    async def run(self) -> int:
        """Serve until a signal; return the exit code. Raises `OSError` and `UnicodeError`."""
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        work = asyncio.create_task(self._serve())
        signalled = asyncio.create_task(ended.wait())
        either: list[asyncio.Task[Any]] = [work, signalled]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            await self._address.drain()
            return 0
        finally:
            for task in either:
                task.cancel()
            await asyncio.gather(*either, return_exceptions=True)
            await self._address.stop()
            await self._site.stop()

    async def _serve(self) -> None:
        """Listen, start the router, and serve. Never returns."""
        url = await self._address.start(self._order.host, self._order.port, self._keys.table)
        app = web.Application(middlewares=[errors_as_json])
        app.add_routes([web.get(DOORS, self._told), web.put(DOORS, self._opens)])
        path = self._address.admin_socket
        await self._site.start(app, path)
        self._tether.listens(url, path)
        listeners = {**self._address.listeners, path: self._site.listen}
        caretaker = Caretaker(self._rundir, {}, listeners)
        await together(
            [self._address.keep(), beats(self._tether), caretaker.keep(), self._says_ready(url)]
        )

    async def _says_ready(self, url: str) -> None:
        """Tell the tether that the router is ready, once it is connected. Never returns."""
        await self._desk.connected()
        self._tether.write(url)
        await asyncio.Event().wait()

    async def _told(self, request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(DoorsTold(self._address.url, self._doors)))

    async def _opens(self, request: web.Request) -> web.Response:
        """Replace the doors of devices; answer once the router uses them.

        If the request has other devices, this process ends: the next one begins with those.
        """
        told = msgspec.json.decode(await request.read(), type=DoorsTold)
        if told.doors.keys() != self._order.doors.keys():  # the next one begins with those
            os.kill(os.getpid(), signal.SIGTERM)
        self._doors = {name: told.doors.get(name, "") for name in self._order.doors}
        self._desk.opens(self._doors)
        await self._desk.seen()
        return await self._told(request)


def serve_router(order: RouterOrder, tether: Tether) -> int:
    """Serve until a signal; return the exit code. Raises `CommandFailed`."""
    told = order.config
    written = Written(told.raw, Path(told.path), Path(told.folder), told.sha256)
    source = ConfigSource(Path(told.path), told.policy, proposed=written)
    # The router goes with this process, and an agent starts another one.
    config = source.declared(written).model_copy(update={"lease_s": 0.0})
    adopt_orphans()
    with ExitStack() as over:
        over.enter_context(unread_stderr())
        rundir = over.enter_context(RunDir())
        reaper = over.enter_context(ReaperClient(*rundir.owned))
        try:
            return asyncio.run(_run(order, config, tether, rundir, reaper))
        except (OSError, UnicodeError) as error:
            place = f"{order.host}:{order.port}"
            raise CommandFailed(f"no router can listen on {place} ({error})") from None


async def _run(
    order: RouterOrder, config: Config, tether: Tether, rundir: RunDir, reaper: ReaperClient
) -> int:
    return await MachineRouter(order, config, tether, rundir, reaper).run()


if __name__ == "__main__":
    by_order("machine_router", RouterOrder, serve_router)
