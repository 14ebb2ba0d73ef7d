"""A router in the test's process with the supervisor's desk, for the tenants of a registry."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from attending import nobody

from mirage.config import HANG_S, HttpSection
from mirage.serve.access.forms import NO_KEYS, AccessTable
from mirage.serve.registry.registry import Registry
from mirage.serve.roster.attendance import Attendance
from mirage.serve.routed.messages import RouterWelcome
from mirage.serve.routed.resizing import Resize
from mirage.serve.router.app import Router
from mirage.serve.router.link import SupervisorLink
from mirage.serve.routing.desk import RouterDesk
from mirage.serve.routing.inner import InnerServer, Overview


class Routed(NamedTuple):
    """A router that listens at `url`, and the supervisor's desk, which sends it the table of
    tenants.
    """

    url: str
    router: Router
    desk: RouterDesk

    async def holds(self, keys: AccessTable) -> None:
        """Replace the keys that the router knows, and wait until it has them."""
        self.desk.holds(keys)
        await self.desk.seen()


async def no_resize(wanted: Resize) -> None:
    raise ValueError("nothing to resize")


async def no_overview(*, reasons: bool) -> bytes:
    return b"{}"


@contextlib.asynccontextmanager
async def routed(
    folder: Path,
    registry: Registry,
    *,
    attendance: Attendance | None = None,
    access: AccessTable = NO_KEYS,
    resize: Callable[[Resize], Awaitable[None]] = no_resize,
    http: HttpSection | None = None,
    overview: Overview = no_overview,
) -> AsyncIterator[Routed]:
    """Run a router and its desk while the block runs; their sockets are in `folder`."""
    line, inner = folder / "router.sock", folder / "inner.sock"
    desk = RouterDesk(registry, attendance or nobody(), HANG_S)
    told = (http or HttpSection()).model_dump()
    await desk.start(line, RouterWelcome(told, "127.0.0.1", 1, HANG_S, str(inner), {}), access)
    server = InnerServer(registry, desk, resize, overview)
    await server.start(inner)
    link = SupervisorLink(line)
    await link.connect()
    router = Router(link)
    tasks = [asyncio.create_task(work) for work in (desk.keep(), link.keep(router))]
    await desk.connected()
    listening = socket.create_server(("127.0.0.1", 0))
    await router.start([listening])
    try:
        scheme = "https" if told["tls"] else "http"
        yield Routed(f"{scheme}://127.0.0.1:{listening.getsockname()[1]}", router, desk)
    finally:
        await router.stop()
        desk.end()
        await desk.left()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop()
        desk.close()
