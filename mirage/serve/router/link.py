"""The router's end of its connection to the supervisor, the line: it connects again whenever the
line is lost, and carries out the supervisor's orders.

A router whose supervisor has gone serves by the last table, as long as its lease allows, and tries
to connect again meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

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
    HttpApplies,
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
    """Receiver of the supervisor's orders: the router, as its connection to the supervisor uses
    it.
    """

    def holds(self, keys: AccessTable) -> None:
        """Replace the table of keys from now on."""

    def limits(self, http: dict[str, Any]) -> None:
        """Use the limits of this section `http` from now on."""

    def renews(self) -> None:
        """Read the certificate again."""

    def opens(self, doors: dict[str, str]) -> None:
        """Replace the URLs of doors; `doors` maps a device's name to its URL."""

    async def drain(self) -> None:
        """Refuse new requests, and return when the last running one has ended."""


class SupervisorLink:
    """Connection of a router to a supervisor, whose tables update `tenants`. Call `connect`, then
    run `keep`.
    """

    def __init__(
        self,
        path: Path,
        sockets: Sequence[socket.socket] = (),
        device: str = "",
        quarantine: ReplicaQuarantine | None = None,
        reach: Reach | None = None,
        guest: str = "",
    ) -> None:
        """`sockets` listen; their descriptors are sent to each supervisor, for a later router.
        `device` is the name of the supervisor's device among several, which share the `quarantine`.
        `reach` is the way to it, None on this machine; `guest` is the name of this router's
        machine, empty if the device is on it."""
        self.path, self._sockets, self._guest = path, sockets, guest
        self.reach: Reach = reach or UnixReach()
        self.tenants = RoutedTenants(device, quarantine)
        self.requests = RequestsOnLine(self.tenants)
        self.welcome: RouterWelcome
        self.was_welcomed = False
        self.has_table = asyncio.Event()
        self.drains = False
        """True while the device takes no new requests, because it is about to end."""
        self._decoder = to_router()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._first = True
        """True until the first table of this connection has come."""
        self._lessons: dict[str, BlameMemory] = {}
        """Evidence about tenants' requests that is kept while a supervisor has gone with its
        engines.
        """
        self._draining: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """True while the supervisor is connected."""
        return self.requests.is_up

    async def connect(self) -> None:
        """Connect, say hello, and wait for the answer, a `RouterWelcome`. Raises `OSError` if the
        supervisor cannot be reached, and `Broken` if it answers with anything else."""
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
        """Reader and writer of a new connection, on which hello was said. Raises `OSError` if the
        supervisor cannot be reached.
        """
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
        """Carry out the supervisor's orders, until it ends the router or is away beyond the
        lease.
        """
        while not await self._kept(hears):
            self._lost()
            if not await self._again():
                return
            hears.renews()
        self._writer.close()

    async def keep_once(self, hears: HearsSupervisor) -> None:
        """Carry out the orders of one of several devices' servers, until the connection ends.

        If the server was killed and its engines have a lease, its table stays in use. Else its
        tenants are no longer served.
        """
        ended = await self._kept(hears)
        self._lost()
        if ended or not self.welcome.lease_s:
            if not ended:
                self._engines_ended()
            self._forget()

    def gone(self) -> None:
        """Note that the device cannot be reached, and serve its tenants no longer. Idempotent."""
        if self.has_table.is_set():
            self._engines_ended()
            self.reach.cut()
            self._forget()

    def _forget(self) -> None:
        self.has_table.clear()
        self._lessons = {one.name: one.memory for one in self.tenants}
        self.tenants.holds(RouterTable())

    def _engines_ended(self) -> None:
        """Note that all engines have ended with their server, which is no evidence against
        requests.
        """
        for one in self.tenants:
            one.ended(Ending(stopped=True), time.monotonic())

    async def _kept(self, hears: HearsSupervisor) -> bool:
        """Send beats and carry out orders; true if the supervisor ends the router.

        False if the connection is lost.
        """
        beating = asyncio.create_task(self.requests.beat())
        try:
            return await self._ends(hears)
        finally:
            beating.cancel()

    async def _ends(self, hears: HearsSupervisor) -> bool:
        """Carry out orders; true if the supervisor ends the router, false if the connection is
        lost.
        """
        try:
            while (message := await receive(self._reader, self._decoder)) is not None:
                if isinstance(message, RouterEnds):
                    return True
                self._hear(message, hears)
        except (Broken, OSError):
            pass
        return False

    async def _again(self) -> bool:
        """Connect again; false if that fails until the lease is over."""
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
            case TableApplies(revision, table, now):
                mine = table.shifted(time.monotonic() - now)
                self.tenants.holds(mine, first=self._first)
                self._first = False
                self.has_table.set()
                self.requests.saw(revision)
            case KeysApply(revision, keys):
                hears.holds(keys)
                self.requests.saw(revision)
            case HttpApplies(revision, http):
                hears.limits(http)
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
