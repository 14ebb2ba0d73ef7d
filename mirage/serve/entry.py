"""Entry of requests to a device: its own address and router, or a connection to the router that
several devices share.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mirage.config import Config
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.access.forms import AccessTable
from mirage.serve.adoption.left import LeftRun
from mirage.serve.device.caretaker import Listen
from mirage.serve.device.domain import Domain
from mirage.serve.logs.logs import TO_STDERR, LogPlan
from mirage.serve.routing.address import ServedAddress
from mirage.serve.routing.inner import Overview
from mirage.serve.rundir.folders import RunDir
from mirage.serve.succession import router_left


class RequestEntry(Protocol):
    """Way by which requests come to a device. Call `begin`, run `keep`, and `stop` at the end."""

    @property
    def listeners(self) -> Mapping[Path, Listen]:
        """Function for each socket file of the run, by its path, that makes the file anew if it
        was removed."""

    @property
    def hears(self) -> bool:
        """True once a router that connects gets the table of tenants and answers to its
        questions."""

    @property
    def admin_socket(self) -> Path:
        """Path of the operators' socket, after `begin`."""

    async def begin(self, host: str, port: int, keys: AccessTable, left: LeftRun | None) -> str:
        """Listen, and return the URL. `left` is the run of a killed server, None if there is none.
        If the router of that run goes on, `hear` has to be called afterwards.

        Raises `OSError` if it cannot listen, and `UnicodeError` for a host name that cannot be
        one.
        """

    async def hear(self, keys: AccessTable) -> None:
        """From now on send the table of tenants and `keys` to each router that connects, and answer
        routers' questions. Raises `OSError` if the routers' socket cannot be opened."""

    async def keep(self) -> None:
        """Answer the messages of connected routers. An entry with a router of its own also starts
        another one whenever that router has ended. Never returns."""

    async def drain(self) -> None:
        """Let routers refuse new requests and finish the running ones, for a limited time.
        Idempotent."""

    async def stop(self) -> None:
        """Close the entry. Idempotent."""

    def kill(self) -> None:
        """Kill the router that this entry has started, if it has, without a drain."""


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
        """Listen, and return the URL. A router of the run `left` goes on if it lives and its host,
        port and scheme are still right; else a new one is started. See `RequestEntry`."""
        if (there := router_left(left, host, port, self._config.http)) is not None:
            return await self.goes_on(*there)
        return await self.start(host, port, keys)
