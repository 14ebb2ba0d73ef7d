"""Entry of requests to one of several devices: a connection to the router that they share."""

from __future__ import annotations

import time
from pathlib import Path

from mirage.config import Config
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.access.forms import NO_KEYS, AccessTable
from mirage.serve.adoption.left import LeftRun
from mirage.serve.device.domain import Domain
from mirage.serve.machine.device_line import DeviceLine
from mirage.serve.machine.order import DeviceOrder
from mirage.serve.routed.messages import RouterWelcome
from mirage.serve.routing.inner import InnerServer, Overview
from mirage.serve.rundir.folders import RunDir
from mirage.serve.tasks import together


class DeviceEntry:
    """Entry of requests to one of several devices. The router belongs to the process above the
    device servers (`mirage serve`).
    """

    def __init__(
        self,
        order: DeviceOrder,
        line: DeviceLine,
        config: Config,
        domain: Domain,
        overview: Overview,
        rundir: RunDir,
        reaper: ReaperClient,
    ) -> None:
        self._order, self._line, self._config = order, line, config
        self._desk, self._reaper = domain.desk, reaper
        self._inner = InnerServer(domain.registry, domain.desk, domain.tiers.resize, overview)
        self._inner_socket = rundir.inner_socket
        self.admin_socket = Path(order.admin)
        self.hears = False
        self.listeners = {
            Path(order.line): self._desk.listen,
            self._inner_socket: self._inner.site.listen,
        }

    async def begin(self, host: str, port: int, keys: AccessTable, left: LeftRun | None) -> str:
        """Return the router's URL; begin to answer the router, unless engines of an earlier run
        have to be taken over first."""
        if left is None:
            await self.hear(keys)
        return self._order.url

    async def hear(self, keys: AccessTable) -> None:
        """From now on send the router this device's tables, and answer its questions. Keys come
        from the process above."""
        welcome = RouterWelcome(
            self._config.http.model_dump(),
            self._order.host,
            int(time.time()),
            self._config.hang_s,
            str(self._inner_socket),
            {},
            self._config.lease_s,
        )
        await self._inner.start(self._inner_socket)
        await self._desk.start(Path(self._order.line), welcome, NO_KEYS)
        self.hears = True

    async def keep(self) -> None:
        """Answer the router's messages, and send signs of life to the process above. Never
        returns."""
        stops = lambda: self._reaper.leases(0.0)  # noqa: E731
        await together([self._desk.keep(), self._line.keep(stops)])

    async def drain(self) -> None:
        """Tell the router to send this device no more requests; running ones go on until engines
        end.
        """
        self._desk.end()

    async def stop(self) -> None:
        """Stop listening to the router. Idempotent."""
        self._desk.close()
        await self._inner.stop()

    def kill(self) -> None:
        """Do nothing: the router belongs to another process."""
