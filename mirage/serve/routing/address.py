"""The address that all are served at: its sockets, the router behind them, what that is told."""

from __future__ import annotations

import asyncio
import contextlib
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
from mirage.serve.logs import TO_STDERR, LogPlan
from mirage.serve.registry import Registry
from mirage.serve.resizing import Resize
from mirage.serve.routed.messages import Beyond, RouterWelcome
from mirage.serve.routing.desk import RouterDesk
from mirage.serve.routing.inner import InnerServer, Overview
from mirage.serve.routing.keeper import RouterKeeper
from mirage.serve.rundir import RunDir
from mirage.serve.together import together

BACKLOG = 1024
"""Connections that wait while no router is there."""
GRACE_S = 5.0
"""Seconds for a router to say that it has drained, beside those of the drain itself."""


class ServedAddress:
    """Address and its router. Call `start`, run `keep`, and call `stop` at the end."""

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
        """`resize` gives the tiers other budgets, `overview` as in `InnerServer`.

        `book` records the router, which has `logs`. `passed` are sockets of the address that
        somebody else has opened. `devices` are the sockets of servers of several devices, which
        the router asks as well. `door` and `beyond` as in `RouterWelcome`.
        """
        self._door, self._beyond = door, beyond
        self._passed = passed
        self._devices = {name: str(path) for name, path in (devices or {}).items()}
        self._config, self._desk, self._rundir = config, desk, rundir
        self._reaper, self._book, self._logs = reaper, book, logs
        self._host, self._port, self.url = "", 0, ""
        self._open = asyncio.Event()
        """Set once a router can be heard."""
        self._inner = InnerServer(registry, desk, resize, overview)
        self._sockets: list[socket.socket] = []
        self._keeper: RouterKeeper | None = None
        self.listeners = {
            rundir.router_socket: desk.listen,
            rundir.inner_socket: self._inner.site.listen,
        }
        """Sockets of the run's folder, and how each is made again."""

    @property
    def admin_socket(self) -> Path:
        """Socket for operators, once the port is known."""
        return self._rundir.admin_socket(self._port)

    async def start(self, host: str, port: int, keys: AccessTable = NO_KEYS) -> str:
        """Listen, and start a router; port 0 takes any free one. Returns the URL.

        Raises `OSError`, `UnicodeError` for a host that cannot be one.
        """
        self._host, self._port = host, port
        await self._listening()
        self.url = _url(host, self._port, self._config.http)
        self._keeper = self._made()
        await self.hear(keys)
        await self._keeper.start()
        return self.url

    async def goes_on(self, left: RouterRecord, process: MarkedProcess) -> str:
        """Have the router of another supervisor, which serves; `hear` has to follow. The URL.

        It comes with the sockets of the address, and waits for `hear`. Raises `OSError`.
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
            http = self._config.http.model_dump()
            self._book.router(RouterRecord(process, self._host, self._port, self.url, http))

    async def _listening(self) -> list[socket.socket]:
        """Sockets of the address, brought by a router, passed or made.

        Raises `OSError`, `UnicodeError`.
        """
        if not self._sockets:
            there = self._desk.take_sockets() or list(self._passed)
            self._sockets = there or await _listening(self._host, self._port)
            self._port = self._sockets[0].getsockname()[1]
        return self._sockets

    @property
    def hears(self) -> bool:
        """True if a router can connect."""
        return self._open.is_set()

    async def hear(self, keys: AccessTable = NO_KEYS) -> None:
        """Let a router connect, and be asked. Raises `OSError`."""
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
        """Never returns."""
        assert self._keeper is not None, "start comes first"
        await self._open.wait()
        await together([self._desk.keep(), self._keeper.keep()])

    async def drain(self) -> None:
        """Refuse what is new, and end what runs. Idempotent."""
        http = self._config.http
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(http.drain_delay_s + http.drain_s + GRACE_S):
                await self._desk.drain()

    async def stop(self) -> None:
        """Close it. Idempotent."""
        if self._keeper is not None:
            await self._keeper.stop()
        self._desk.close()
        await self._inner.stop()
        for one in (*self._sockets, *self._passed):
            one.close()
        self._sockets.clear()

    def kill(self) -> None:
        """End the router at once."""
        if self._keeper is not None:
            self._keeper.kill()


async def _listening(host: str, port: int) -> list[socket.socket]:
    """Sockets of all addresses that a host has. Raises `OSError` and `UnicodeError`."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    try:
        made = [socket.socket(fileno=one.dup().detach()) for one in server.sockets]
    finally:
        server.close()
    for one in made:
        one.listen(BACKLOG)
    return made


def _url(host: str, port: int, http: HttpSection) -> str:
    scheme = "http" if http.tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
