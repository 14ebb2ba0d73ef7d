"""The router's end of the line to the supervisor: what holds, who may pass, what is told back.

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

import msgspec

from mirage.serve.access.forms import AccessTable
from mirage.serve.ends.comeback import LOOK_AGAIN_S
from mirage.serve.ends.ending import Ending
from mirage.serve.roster.ticket import NotInTime
from mirage.serve.routed.messages import (
    BEAT_S,
    PROTOCOL_VERSION,
    Admitted,
    AnswersAwaited,
    AnswersLost,
    AskAdmission,
    BlameMemory,
    CertificateAgain,
    Drained,
    EndJudged,
    EngineEnded,
    KeysApply,
    NotAdmitted,
    RequestOver,
    RequestsEnded,
    RouterAlive,
    RouterDrains,
    RouterEnds,
    RouterHello,
    RouterWelcome,
    TableApplies,
    TableSeen,
    TenantCount,
    ToRouter,
    to_router,
)
from mirage.serve.routed.table import RouterTable
from mirage.serve.routed.tenants import RoutedTenant, RoutedTenants
from mirage.serve.router.ticket import RouterTicket
from mirage.wire import Broken, encode, receive

AGAIN_S = 0.2
"""Seconds between two attempts to connect."""
TELL_S = 0.005
"""Seconds for which changes of counts are gathered."""
AWAY = "the supervisor is away"


class HearsSupervisor(Protocol):
    """Router, as the line sees it."""

    def holds(self, keys: AccessTable) -> None:
        """These keys hold from now on."""

    def renews(self) -> None:
        """Read the certificate again."""

    async def drain(self) -> None:
        """Return when new requests are refused, and none runs."""


class SupervisorLink:
    """Line to a supervisor; keeps `tenants` as it says. Call `connect`, then run `keep`."""

    def __init__(self, path: Path, sockets: Sequence[socket.socket] = (), device: str = "") -> None:
        """`sockets` listen, and are handed to each supervisor: another router may have them.

        `device` is that of the supervisor, among several.
        """
        self._path, self._sockets = path, sockets
        self.tenants = RoutedTenants(device)
        self.welcome: RouterWelcome
        self.was_welcomed = False
        self.has_table = asyncio.Event()
        self._decoder = to_router()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self.is_up = False
        """True while the supervisor is connected."""
        self._number = 0
        self._waiting: dict[int, RouterTicket] = {}
        """Requests that the supervisor knows by their numbers."""
        self._revision = 0
        self._first = True
        """True until the first table of the line has come."""
        self._told: dict[str, TenantCount] = {}
        self._lessons: dict[str, BlameMemory] = {}
        """Lessons about tenants of a supervisor that has gone with its engines."""
        self._telling: asyncio.TimerHandle | None = None
        self._draining: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Say hello, and be welcomed. Raises `OSError` and `Broken`."""
        there = await self._said_hello()
        self._reader, self._writer = await asyncio.open_unix_connection(sock=there)
        try:
            message = await receive(self._reader, self._decoder)
            if not isinstance(message, RouterWelcome):
                raise Broken(f"it began with {message}")
        except BaseException:
            self._writer.close()
            raise
        if not self.has_table.is_set():
            self.tenants.begin(message.hang_s, {**self._lessons, **message.memory})
        self.welcome, self.is_up, self.was_welcomed = message, True, True
        self._revision, self._first = 0, True
        self._told.clear()

    async def _said_hello(self) -> socket.socket:
        """A connection. Raises `OSError`."""
        hello = encode(RouterHello(PROTOCOL_VERSION, os.getpid()), len(self._sockets))
        there = socket.socket(socket.AF_UNIX)
        try:
            there.setblocking(False)
            await asyncio.get_running_loop().sock_connect(there, str(self._path))
            if self._sockets:
                socket.send_fds(there, [hello], [one.fileno() for one in self._sockets])
            else:
                there.send(hello)
        except BaseException:
            there.close()
            raise
        return there

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
            self.has_table.clear()
            self._lessons = {one.name: one.memory for one in self.tenants}
            self.tenants.holds(RouterTable())

    async def _kept(self, hears: HearsSupervisor) -> bool:
        """True once the supervisor has the router end, false once the line is lost."""
        beating = asyncio.create_task(self._beat())
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
        """Nobody answers who waits; what was let pass is counted here from now on."""
        self.is_up = False
        self._writer.close()
        waiting, self._waiting = self._waiting, {}
        for ticket in waiting.values():
            ticket.answer(NotInTime(LOOK_AGAIN_S, AWAY))
            if ticket.passed:
                ticket.counts()

    def _hear(self, message: ToRouter, hears: HearsSupervisor) -> None:
        match message:
            case TableApplies(revision, table):
                self.tenants.holds(table, first=self._first)
                self._first = False
                self.has_table.set()
                self._saw(revision)
            case KeysApply(revision, keys):
                hears.holds(keys)
                self._saw(revision)
            case CertificateAgain(revision):
                hears.renews()
                self._saw(revision)
            case Admitted(number):
                if (ticket := self._waiting.get(number)) is not None:
                    ticket.answer(None)
            case NotAdmitted(number, wait_s, why):
                if (ticket := self._waiting.get(number)) is not None:
                    ticket.answer(NotInTime(wait_s, why))
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
            self._say(EndJudged(name, words, bodies, tenant.memory))
        else:
            self._say(EndJudged(name, "", [], BlameMemory()))

    async def _drain(self, hears: HearsSupervisor) -> None:
        await hears.drain()
        self._say(Drained())

    # -- requests -----------------------------------------------------------------------

    def ask(self, tenant: RoutedTenant) -> RouterTicket:
        """A request for a tenant comes. Raises `NotInTime`."""
        if tenant.row.at_once:
            ticket = RouterTicket(tenant, 0, self._over)
            ticket.counts()
            self._tell_soon()
            return ticket
        if not self.is_up:
            raise NotInTime(LOOK_AGAIN_S, AWAY)
        self._number += 1
        ticket = self._waiting[self._number] = RouterTicket(tenant, self._number, self._over)
        self._say(AskAdmission(self._number, tenant.name))
        return ticket

    def _over(self, ticket: RouterTicket) -> None:
        """A request has ended."""
        if ticket.number and self._waiting.pop(ticket.number, None) is not None:
            self._say(RequestOver(ticket.number))
        else:
            self._tell_soon()

    # -- what is told back --------------------------------------------------------------

    def _say(self, message: msgspec.Struct) -> None:
        if self.is_up and not self._writer.is_closing():
            self._writer.write(encode(message))

    def _saw(self, revision: int) -> None:
        self._revision = max(self._revision, revision)
        self._tell()

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(TELL_S, self._tell)

    def _tell(self) -> None:
        """Say what was seen, and each count that has changed."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        counts = [one.count for one in self.tenants if one.count != self._told.get(one.name)]
        self._told = {one.name: one.count for one in self.tenants}
        self._say(TableSeen(self._revision, counts))

    def _tell_ended(self) -> None:
        """Tell lengths and times of what has ended, while somebody hears them."""
        if self.is_up and not self._writer.is_closing():
            for one in self.tenants:
                if rows := one.untold.take():
                    self._say(RequestsEnded(one.name, rows))

    async def _beat(self) -> None:
        awaited: dict[str, list[int]] = {}
        while True:
            self._say(RouterAlive())
            before, awaited = awaited, {one.name: one.answers.take_long() for one in self.tenants}
            for name, waits in awaited.items():
                if waits != before.get(name, []):
                    self._say(AnswersAwaited(name, waits))
            self._tell_ended()
            await asyncio.sleep(BEAT_S)
