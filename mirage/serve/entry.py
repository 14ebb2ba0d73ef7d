"""Entry of requests to a device: an address of its own, or a line to a router before several."""

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
        """Sockets of the run's folder, and how each is made again."""

    @property
    def hears(self) -> bool:
        """True if a router can connect."""

    @property
    def admin_socket(self) -> Path:
        """Socket for operators, once it has begun."""

    async def begin(self, host: str, port: int, keys: AccessTable, left: LeftRun | None) -> str:
        """Listen; the URL. What serves in a run that was `left` may go on: `hear` follows then.

        Raises `OSError`, `UnicodeError` for a host that cannot be one.
        """

    async def hear(self, keys: AccessTable) -> None:
        """Let a router connect, and be asked. Raises `OSError`."""

    async def keep(self) -> None:
        """Never returns."""

    async def drain(self) -> None:
        """Refuse what is new, and end what runs. Idempotent."""

    async def stop(self) -> None:
        """Close it. Idempotent."""

    def kill(self) -> None:
        """End at once what would outlive this process."""


MadeEntry = Callable[[Config, Domain, Overview, RunDir, ReaperClient], RequestEntry]
"""Maker of the entry to a device; `OwnAddress` is one."""


class OwnAddress(ServedAddress):
    """The way of a server with one device: its own address and router."""

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
        """`overview`, `logs`, `passed` and `door` as in `ServedAddress`."""
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
        """See `RequestEntry`: the router that was left goes on if it serves as it shall now."""
        if (there := router_left(left, host, port, self._config.http)) is not None:
            return await self.goes_on(*there)
        return await self.start(host, port, keys)
