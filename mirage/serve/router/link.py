"""The router's end of the line to the supervisor: connected again and again, and what it hears.

A router whose supervisor has gone serves on by the last table, as long as its lease allows, and
connects again and again meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from mirage.control.routes.quarantine import ReplicaQuarantine
from mirage.serve.access.forms import AccessTable
from mirage.serve.ends.ending import Ending
from mirage.serve.roster.ticket import NotInTime
from mirage.serve.routed.messages import (
    PROTOCOL_VERSION,
    Admitted,
    AnswersLost,
    BlameMemory,
    CertificateAgain,
    DoorsApply,
    Drained,
    EndJudged,
    EngineEnded,
    KeysApply,
    NotAdmitted,
    RouterDrains,
    RouterEnds,
    RouterHello,
    RouterWelcome,
    TableApplies,
    ToRouter,
    to_router,
)
from mirage.serve.routed.table import RouterTable
from mirage.serve.routed.tenants import RoutedTenants
from mirage.serve.router.line import RequestsOnLine
from mirage.serve.router.reach import Reach, UnixReach, streams
from mirage.wire import Broken, encode, receive

AGAIN_S = 0.2
"""Seconds between two attempts to connect."""


class HearsSupervisor(Protocol):
    """Router, as the line sees it."""

    def holds(self, keys: AccessTable) -> None:
        """These keys hold from now on."""

    def renews(self) -> None:
        """Read the certificate again."""

    def opens(self, doors: dict[str, str]) -> None:
        """Devices are behind these doors from now on."""

    async def drain(self) -> None:
        """Return when new requests are refused, and none runs."""


class SupervisorLink:
    """Line to a supervisor; keeps `tenants` as it says. Call `connect`, then run `keep`."""

    def __init__(
        self,
        path: Path,
        sockets: Sequence[socket.socket] = (),
        device: str = "",
        quarantine: ReplicaQuarantine | None = None,
        reach: Reach | None = None,
        guest: str = "",
    ) -> None:
        """`sockets` listen, and are handed to each supervisor: another router may have them.

        `device` is that of the supervisor, among several, which share the `quarantine`. `reach` is
        the way to it if it is not on this machine, `guest` then as in `RouterHello`.
        """
        self.path, self._sockets, self._guest = path, sockets, guest
        self.reach: Reach = reach or UnixReach()
        self.tenants = RoutedTenants(device, quarantine)
        self.requests = RequestsOnLine(self.tenants)
        self.welcome: RouterWelcome
        self.was_welcomed = False
        self.has_table = asyncio.Event()
        self.drains = False
        """True while its device takes no new requests, since it is about to end."""
        self._decoder = to_router()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._first = True
        """True until the first table of the line has come."""
        self._lessons: dict[str, BlameMemory] = {}
        """Lessons about tenants of a supervisor that has gone with its engines."""
        self._draining: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """True while the supervisor is connected."""
        return self.requests.is_up

    async def connect(self) -> None:
        """Say hello, and be welcomed. Raises `OSError` and `Broken`."""
        self._reader, self._writer = await self._said_hello()
        try:
            message = await receive(self._reader, self._decoder)
            if not isinstance(message, RouterWelcome):
                raise Broken(f"it began with {message}")
        except BaseException:
            self._writer.close()
            raise
        if not self.has_table.is_set():
            self.tenants.begin(message.hang_s, {**self._lessons, **message.memory})
        self.welcome, self.was_welcomed, self._first = message, True, True
        self.drains = False
        self.requests.begin(self._writer)

    async def _said_hello(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection. Raises `OSError`."""
        hello = RouterHello(PROTOCOL_VERSION, os.getpid(), self._guest)
        if not self._sockets:
            reader, writer = await streams(self.reach, self.path)
            writer.write(encode(hello))
            return reader, writer
        there = socket.socket(socket.AF_UNIX)
        try:
            there.setblocking(False)
            await asyncio.get_running_loop().sock_connect(there, str(self.path))
            numbers = [one.fileno() for one in self._sockets]
            socket.send_fds(there, [encode(hello, len(numbers))], numbers)
        except BaseException:
            there.close()
            raise
        return await asyncio.open_unix_connection(sock=there)

    async def keep(self, hears: HearsSupervisor) -> None:
        """Do as the supervisor says, until it has the router end, or has gone for too long."""
        while not await self._kept(hears):
            self._lost()
            if not await self._again():
                return
            hears.renews()
        self._writer.close()

    async def keep_once(self, hears: HearsSupervisor) -> None:
        """Do as one of several supervisors says, until it has gone.

        Its engines go on if it was killed and they have a lease; else nothing of it is served.
        """
        ended = await self._kept(hears)
        self._lost()
        if ended or not self.welcome.lease_s:
            if not ended:
                self._engines_ended()
            self._forget()

    def gone(self) -> None:
        """The device cannot be reached: nothing of it is served. Idempotent."""
        if self.has_table.is_set():
            self._engines_ended()
            self.reach.cut()
            self._forget()

    def _forget(self) -> None:
        self.has_table.clear()
        self._lessons = {one.name: one.memory for one in self.tenants}
        self.tenants.holds(RouterTable())

    def _engines_ended(self) -> None:
        """They end with their server, and that says nothing of requests."""
        for one in self.tenants:
            one.ended(Ending(stopped=True), time.monotonic())

    async def _kept(self, hears: HearsSupervisor) -> bool:
        """True once the supervisor has the router end, false once the line is lost."""
        beating = asyncio.create_task(self.requests.beat())
        try:
            return await self._ends(hears)
        finally:
            beating.cancel()

    async def _ends(self, hears: HearsSupervisor) -> bool:
        """True if the supervisor has the router end, false once the line is lost."""
        try:
            while (message := await receive(self._reader, self._decoder)) is not None:
                if isinstance(message, RouterEnds):
                    return True
                self._hear(message, hears)
        except (Broken, OSError):
            pass
        return False

    async def _again(self) -> bool:
        """Connect again; false if nobody is there until the lease is over."""
        until = time.monotonic() + self.welcome.lease_s
        while (left_s := until - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self.connect()
            except (Broken, OSError):
                await asyncio.sleep(AGAIN_S)
            else:
                return True
        return False

    def _lost(self) -> None:
        self._writer.close()
        self.requests.lost()

    def _hear(self, message: ToRouter, hears: HearsSupervisor) -> None:
        match message:
            case TableApplies(revision, table):
                self.tenants.holds(table, first=self._first)
                self._first = False
                self.has_table.set()
                self.requests.saw(revision)
            case KeysApply(revision, keys):
                hears.holds(keys)
                self.requests.saw(revision)
            case DoorsApply(revision, doors):
                hears.opens(doors)
                self.requests.saw(revision)
            case CertificateAgain(revision):
                hears.renews()
                self.requests.saw(revision)
            case Admitted(number):
                self.requests.answered(number, None)
            case NotAdmitted(number, wait_s, why):
                self.requests.answered(number, NotInTime(wait_s, why))
            case EngineEnded(tenant, ending):
                self._judge(tenant, ending)
            case AnswersLost(tenant, waits):
                if tenant in self.tenants:
                    self.tenants[tenant].answers.give_up(waits)
            case RouterDrains():
                self._draining = asyncio.create_task(self._drain(hears))

    def _judge(self, name: str, ending: Ending) -> None:
        if name in self.tenants:
            tenant = self.tenants[name]
            blame = tenant.ended(ending, time.monotonic())
            words, bodies = str(blame), sorted(blame.bodies)
            self.requests.say(EndJudged(name, words, bodies, tenant.memory))
        else:
            self.requests.say(EndJudged(name, "", [], BlameMemory()))

    async def _drain(self, hears: HearsSupervisor) -> None:
        await hears.drain()
        self.requests.say(Drained())
