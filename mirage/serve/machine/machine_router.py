"""Router of one machine for the devices of all machines, as a process without a parent.

``python -m mirage.serve.machine.machine_router ORDER SOCKET EPOCH LEASE_S``. The router reaches
each device at its door, an address that the cluster's controller tells; without a controller the
router keeps the last addresses.
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

from mirage.config import Config, ConfigError
from mirage.errors import CommandFailed
from mirage.machines.tether import Tether
from mirage.processes.child import adopt_orphans
from mirage.processes.reaper_client import ReaperClient
from mirage.processes.unread import unread_stderr
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.server_keys import OrderedKeys, ServerKeys
from mirage.serve.admin.asked import switched_on
from mirage.serve.adoption.book import RunBook
from mirage.serve.adoption.record import ConfigRecord
from mirage.serve.api.openai import ApiError, errors_as_json
from mirage.serve.apply.difference import difference
from mirage.serve.apply.source import ConfigSource, Written
from mirage.serve.clients.certificate import check_tls
from mirage.serve.device.caretaker import Caretaker
from mirage.serve.http.private_site import PrivateSite
from mirage.serve.logs.logs import LogFormat
from mirage.serve.machine.nobody import no_overview, no_tiers, nobody
from mirage.serve.machine.tethered import beats, by_order
from mirage.serve.registry.registry import DeviceSources, Registry
from mirage.serve.routed.messages import LINE, Beyond
from mirage.serve.routing.address import ServedAddress, url_of
from mirage.serve.routing.desk import RouterDesk
from mirage.serve.rundir.folders import RunDir
from mirage.serve.tasks import together

PROGRAM = ("-m", "mirage.serve.machine.machine_router")
TO_MOVE = "which cannot change while it runs: mirage node leave on its machine ends it"
ORDER = "/order"
"""Route of the router's admin socket to read and to replace its order."""


class RouterOrder(msgspec.Struct, frozen=True):
    """Start parameters (order) of the router of a machine."""

    device: str
    """Name by which the agent knows this router; it knows a device's server by the device's name.
    """
    machine: str
    config: ConfigRecord
    """Configuration with the sections that hold for all devices."""
    host: str
    port: int
    keys: tuple[AccessKey, ...]
    """Keys of clients, and the cluster's own."""
    token: str
    """Token of the key with which devices let this router in."""
    doors: dict[str, str]
    """URLs at which devices of all machines let routers in (their doors), by device; an empty text
    for a URL that is not known yet.
    """
    log_level: int
    log_format: LogFormat


class RouterTold(msgspec.Struct, frozen=True):
    """Answer of ``GET /order``, and of ``PUT /order``, whose body is a `RouterOrder`."""

    url: str
    """URL of the router itself."""
    doors: dict[str, str]
    words: str = ""
    """Words about a part of the order that the router could not follow; empty if there is none."""


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
        self._order, self._config = order, config
        self._tether, self._rundir = tether, rundir
        registry = Registry(config.policy, 0, {}, DeviceSources())
        self._desk = RouterDesk(registry, nobody(), config.hang_s)
        self._desk.opens(order.doors)
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
        """Serve until a signal; return the exit code. Raises `OSError` if it cannot listen, and
        `UnicodeError` for a host name that cannot be one."""
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
        app.add_routes([web.get(ORDER, self._told), web.put(ORDER, self._obeys)])
        path = self._address.admin_socket
        await self._site.start(app, path)
        self._tether.listens(url, path)
        listeners = {**self._address.listeners, path: self._site.listen}
        caretaker = Caretaker(self._rundir, {}, listeners)
        await together(
            [self._address.keep(), beats(self._tether), caretaker.keep(), self._says_ready(url)]
        )

    async def _says_ready(self, url: str) -> None:
        """Tell the agent that the router is ready, once the router process is connected to this
        one. Never returns.
        """
        await self._desk.connected()
        self._tether.write(url)
        await asyncio.Event().wait()

    async def _told(self, request: web.Request) -> web.Response:
        return self._answer("")

    def _answer(self, words: str) -> web.Response:
        told = RouterTold(self._address.url, self._order.doors, words)
        return web.Response(body=msgspec.json.encode(told))

    async def _obeys(self, request: web.Request) -> web.Response:
        """Follow another order, or with ``?dry_run=1`` answer whether that is possible.

        The answer comes once the router process uses the order, and has read the certificate again.
        If the order names other devices than the one before, this process follows it for the
        devices that it has, answers, and ends: the next process begins with the other devices.
        """
        order = msgspec.json.decode(await request.read(), type=RouterOrder)
        config, words = await asyncio.to_thread(self._checked, order)
        if switched_on(request, "dry_run"):
            return self._answer(words)
        if order.doors.keys() == self._order.doors.keys():
            await self._follows(order, config, renews=not words)
            return self._answer(words)
        known = {name: order.doors.get(name, "") for name in self._order.doors}
        try:
            await self._follows(
                msgspec.structs.replace(order, doors=known), config, renews=not words
            )
            answer = self._answer(words)
            await answer.prepare(request)
            await answer.write_eof()
            return answer
        finally:  # also if the client has gone
            os.kill(os.getpid(), signal.SIGTERM)

    async def _follows(self, order: RouterOrder, config: Config, *, renews: bool) -> None:
        """Have the router process use an order for the devices that it has, and wait until it does.
        With `renews` it reads the files of its certificate again, if it has one.
        """
        if order.keys != self._order.keys:
            self._keys.ordered(order.keys)
            self._desk.holds(self._keys.table)
        if difference(self._config, config).http:
            self._desk.limits(config.http)
        if config.http.tls is not None and renews:
            self._desk.renews()
        self._order, self._config = order, config
        self._desk.opens(order.doors)
        await self._desk.seen()

    def _checked(self, order: RouterOrder) -> tuple[Config, str]:
        """Configuration of an order, and words about a certificate that cannot be read again.

        Raises `ApiError` if the order is invalid, or needs a router at another address.
        """
        try:
            config = declared(order)
        except ConfigError as error:
            raise ApiError(400, str(error)) from None
        url = url_of(order.host, order.port or self._address.port, config.http)
        if url != self._address.url:
            raise ApiError(409, f"it serves at {self._address.url}, not at {url}, {TO_MOVE}")
        try:
            check_tls(config.http)
        except ConfigError as error:
            if config.http.tls != self._config.http.tls:
                raise ApiError(400, str(error)) from None
            return config, f"the certificate stays as it was: {error}"
        return config, ""


def declared(order: RouterOrder) -> Config:
    """Configuration of an order. Raises `ConfigError` if it is invalid."""
    told = order.config
    written = Written(told.raw, Path(told.path), Path(told.folder), told.sha256)
    source = ConfigSource(Path(told.path), told.policy, proposed=written)
    # The router goes with its process, and an agent starts another one.
    return source.declared(written).model_copy(update={"lease_s": 0.0})


def serve_router(order: RouterOrder, tether: Tether) -> int:
    """Serve until a signal; return the exit code. Raises `CommandFailed` if the router cannot
    listen at its address."""
    config = declared(order)
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
