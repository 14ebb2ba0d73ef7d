"""Entry of requests to a device: its own address, or a line to a router for several devices."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mirage.config import Config
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.access.forms import AccessTable
from mirage.serve.adoption.left import LeftRun
from mirage.serve.caretaker import Listen
from mirage.serve.domain import Domain
from mirage.serve.logs import TO_STDERR, LogPlan
from mirage.serve.routing.address import ServedAddress
from mirage.serve.routing.inner import Overview
from mirage.serve.rundir import RunDir
from mirage.serve.succession import router_left


class RequestEntry(Protocol):
    """Way by which requests come. Call `begin`, run `keep`, and call `stop` at the end."""

    @property
    def listeners(self) -> Mapping[Path, Listen]:
        """Functions that listen again, by the paths of the run's sockets that they make."""

    @property
    def hears(self) -> bool:
        """True once routers that connect are sent tables and may ask."""

    @property
    def admin_socket(self) -> Path:
        """Path of the operators' socket, after `begin`."""

    async def begin(self, host: str, port: int, keys: AccessTable, left: LeftRun | None) -> str:
        """Listen, and return the URL. A router of a run that was `left` may go on: then `hear` has
        to follow.

        Raises `OSError`, and `UnicodeError` for a host name that cannot be one.
        """

    async def hear(self, keys: AccessTable) -> None:
        """From now on send routers that connect their tables and `keys`, and answer their
        questions. Raises `OSError`."""

    async def keep(self) -> None:
        """Answer routers, and keep one running where it is this entry's own. Never returns."""

    async def drain(self) -> None:
        """Let routers refuse new requests and end the running ones. Idempotent."""

    async def stop(self) -> None:
        """Close the entry. Idempotent."""

    def kill(self) -> None:
        """Kill at once the processes that would outlive this one."""


MadeEntry = Callable[[Config, Domain, Overview, RunDir, ReaperClient], RequestEntry]
"""Function that makes the entry to a device; `OwnAddress` is one."""


class OwnAddress(ServedAddress):
    """Entry of a server with one device: its own address and router."""

    def __init__(
        self,
        config: Config,
        domain: Domain,
        overview: Overview,
        rundir: RunDir,
        reaper: ReaperClient,
        logs: LogPlan = TO_STDERR,
        passed: Sequence[socket.socket] = (),
        door: str = "",
    ) -> None:
        """`overview` returns the overview for the router; `logs`, `passed` and `door` are the
        arguments of `ServedAddress`."""
        super().__init__(
            config,
            domain.registry,
            domain.desk,
            domain.tiers.resize,
            overview,
            rundir,
            reaper,
            domain.book,
            logs,
            passed,
            door=door,
        )

    async def begin(self, host: str, port: int, keys: AccessTable, left: LeftRun | None) -> str:
        """Listen, and return the URL. A router that was left goes on if its address and settings
        are still right; else a new one is started. See `RequestEntry`."""
        if (there := router_left(left, host, port, self._config.http)) is not None:
            return await self.goes_on(*there)
        return await self.start(host, port, keys)
