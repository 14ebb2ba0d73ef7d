"""Address of the server: its sockets, the router behind them, and the messages to that router."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from mirage.config import Config, HttpSection
from mirage.processes.marks import MarkedProcess, mark_of
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.access.forms import NO_KEYS, AccessTable
from mirage.serve.adoption.book import RunBook
from mirage.serve.adoption.record import RouterRecord
from mirage.serve.logs.logs import TO_STDERR, LogPlan
from mirage.serve.registry.registry import Registry
from mirage.serve.routed.messages import Beyond, RouterWelcome
from mirage.serve.routed.resizing import Resize
from mirage.serve.routing.desk import RouterDesk
from mirage.serve.routing.inner import InnerServer, Overview
from mirage.serve.routing.keeper import RouterKeeper
from mirage.serve.rundir.folders import RunDir
from mirage.serve.tasks import together

BACKLOG = 1024
"""Most connections that wait to be accepted, such as while no router runs."""


class ServedAddress:
    """Address of a server, and its router. Call `start`, run `keep`, and call `stop` at the end."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        desk: RouterDesk,
        resize: Callable[[Resize], Awaitable[None]],
        overview: Overview,
        rundir: RunDir,
        reaper: ReaperClient,
        book: RunBook,
        logs: LogPlan = TO_STDERR,
        passed: Sequence[socket.socket] = (),
        devices: Mapping[str, Path] | None = None,
        door: str = "",
        beyond: Beyond | None = None,
    ) -> None:
        """`resize` gives the tiers other budgets, `overview` returns the overview that the router
        shows. `book` records the router, whose logs go by `logs`. `passed` are sockets of the
        address that were opened by another process. `devices` are the sockets of the servers of
        several devices, by name: the router connects to them as well. `door` is the name of the key
        that opens this device's door to routers of other machines; `beyond` is the access to
        devices that are each behind a door, else None."""
        self._door, self._beyond = door, beyond
        self._passed = passed
        self._devices = {name: str(path) for name, path in (devices or {}).items()}
        self._config, self._desk, self._rundir = config, desk, rundir
        self._reaper, self._book, self._logs = reaper, book, logs
        self._host, self._port, self.url = "", 0, ""
        self._open = asyncio.Event()
        """Set once routers are answered and the inner server listens."""
        self._inner = InnerServer(registry, desk, resize, overview)
        self._sockets: list[socket.socket] = []
        self._keeper: RouterKeeper | None = None
        self.listeners = {
            rundir.router_socket: desk.listen,
            rundir.inner_socket: self._inner.site.listen,
        }
        """Functions that listen again, by the paths of the run's sockets that they make."""

    @property
    def port(self) -> int:
        """Port of the address, once it listens."""
        return self._port

    @property
    def admin_socket(self) -> Path:
        """Path of the operators' socket; its name has the port, so the address has to be open."""
        return self._rundir.admin_socket(self._port)

    async def start(self, host: str, port: int, keys: AccessTable = NO_KEYS) -> str:
        """Open the address and start a router, which asks clients for `keys`; return the URL. Port
        0 takes any free port.

        Raises `OSError` if the address cannot be used or the router cannot be started, and
        `UnicodeError` for a host name that cannot be one.
        """
        self._host, self._port = host, port
        await self._listening()
        self.url = url_of(host, self._port, self._config.http)
        self._keeper = self._made()
        await self.hear(keys)
        await self._keeper.start()
        return self.url

    async def goes_on(self, left: RouterRecord, process: MarkedProcess) -> str:
        """Take over a router that another supervisor started and that still serves; return the URL.

        The router brings the sockets of the address when it connects, and waits for its welcome
        until `hear` is called. Raises `OSError` if no socket for routers can be made.
        """
        await self._desk.open(self._rundir.router_socket)
        self._host, self._port, self.url = left.host, left.port, left.url
        self._keeper = self._made()
        self._keeper.goes_on(process)
        self._book.router(left)
        return self.url

    def _made(self) -> RouterKeeper:
        path = self._rundir.router_socket
        lease = self._config.lease_s > 0
        return RouterKeeper(
            self._desk,
            self._reaper,
            path,
            self._listening,
            self._began,
            lease=lease,
            logs=self._logs,
        )

    def _began(self, pid: int) -> None:
        if (process := mark_of(pid)) is not None:
            self._book.router(RouterRecord(process, self._host, self._port, self.url))

    async def _listening(self) -> list[socket.socket]:
        """Sockets of the address: those that a router brought, else those passed, else new ones.

        Raises `OSError` if an address cannot be used, and `UnicodeError` for a host name that
        cannot be one.
        """
        if not self._sockets:
            there = self._desk.take_sockets() or list(self._passed)
            self._sockets = there or await _listening(self._host, self._port)
            self._port = self._sockets[0].getsockname()[1]
        return self._sockets

    @property
    def hears(self) -> bool:
        """True once routers that connect are sent tables and may ask."""
        return self._open.is_set()

    async def hear(self, keys: AccessTable = NO_KEYS) -> None:
        """From now on accept the connections of routers, send them tables and `keys`, and answer
        their questions. Raises `OSError` if a socket cannot be made."""
        await self._inner.start(self._rundir.inner_socket)
        await self._desk.start(self._rundir.router_socket, self._welcome(), keys)
        self._open.set()

    def _welcome(self) -> RouterWelcome:
        return RouterWelcome(
            self._config.http.model_dump(),
            self._host,
            int(time.time()),
            self._config.hang_s,
            str(self._rundir.inner_socket),
            {},
            self._config.lease_s,
            self._devices,
            self._door,
            self._beyond,
        )

    async def keep(self) -> None:
        """Answer the messages of routers that connect, and start a router again whenever it has
        ended. Never returns."""
        assert self._keeper is not None, "start comes first"
        await self._open.wait()
        await together([self._desk.keep(), self._keeper.keep()])

    async def drain(self) -> None:
        """Let routers refuse new requests, and break off running ones that do not finish in time.
        Idempotent.

        New requests are refused after `http.drain_delay_s` seconds; running ones may finish in the
        next `http.drain_s` seconds. Returns once this is done, and at the latest after both times
        and a grace period.
        """
        await self._desk.drain()

    async def stop(self) -> None:
        """End the router, and close the address. Idempotent."""
        if self._keeper is not None:
            await self._keeper.stop()
        self._desk.close()
        await self._inner.stop()
        for one in (*self._sockets, *self._passed):
            one.close()
        self._sockets.clear()

    def kill(self) -> None:
        """Kill the router immediately."""
        if self._keeper is not None:
            self._keeper.kill()


async def _listening(host: str, port: int) -> list[socket.socket]:
    """New sockets on all addresses of a host name. Raises `OSError` if an address cannot be used,
    and `UnicodeError` for a host name that cannot be one."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    try:
        made = [socket.socket(fileno=one.dup().detach()) for one in server.sockets]
    finally:
        server.close()
    for one in made:
        one.listen(BACKLOG)
    return made


def url_of(host: str, port: int, http: HttpSection) -> str:
    """Address as clients write it."""
    scheme = "http" if http.tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
