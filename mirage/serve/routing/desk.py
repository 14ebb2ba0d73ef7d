"""The supervisor's end of the connections to its routers, the lines: it sends the table, and learns
of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from mirage.config import HttpSection
from mirage.control.liveness import RunningTime
from mirage.serve.access.forms import NO_KEYS, AccessTable
from mirage.serve.ends.ending import Ending
from mirage.serve.registry.registry import Registry
from mirage.serve.roster.attendance import Attendance
from mirage.serve.routed.messages import (
    BEAT_S,
    AnswersAwaited,
    AnswersLost,
    BlameMemory,
    CertificateAgain,
    DoorsApply,
    EndJudged,
    FromRouter,
    HttpApplies,
    KeysApply,
    RequestsEnded,
    RouterDrains,
    RouterEnds,
    RouterWelcome,
    TableApplies,
    from_router,
)
from mirage.serve.routed.table import RouterTable
from mirage.serve.routing.entrance import RouterCame, RouterEntrance
from mirage.serve.routing.line import EndVerdict, RouterLine
from mirage.serve.routing.lines import OWN, RouterLines
from mirage.serve.routing.made import table_of
from mirage.wire import Broken, receive

log = logging.getLogger(__name__)

LOOK_S = 0.05
"""Seconds between two looks for changes that were not announced."""
GRACE_S = 5.0
"""Seconds that a router has to say that it has drained, beyond the times of the drain itself."""
SEEN_S = 2.0
"""Most seconds to wait until routers use what was sent."""


class RouterDesk:
    """The supervisor's end of all lines to routers: sends them tables made from registry and
    roster, and has the roster admit their requests.

    `keep` has to run. A router that connects replaces the one before of the same machine. Beside
    the device's own router, those of other machines may connect.
    """

    def __init__(self, registry: Registry, attendance: Attendance, hang_s: float) -> None:
        """A router that gives no sign of life for `hang_s` seconds is taken for hung."""
        self._registry, self._attendance, self._hang_s = registry, attendance, hang_s
        self._welcome: RouterWelcome
        self._keys = NO_KEYS
        self._doors: dict[str, str] = {}
        self._table = RouterTable()
        self.revision = 1
        """Number that each change sent to routers raises: of the table, keys, limits, doors or
        certificate.
        """
        self._keys_revision = 1
        self._http: dict[str, Any] | None = None
        """Section `http` since its last change while the server runs; None before a change."""
        self._below = registry.below_health()
        self._open: set[str] = set()
        """Tenants to which routers may pass requests on without asking the supervisor."""
        self._shut: dict[str, int] = {}
        """Tenants to which requests are no longer passed on without asking, with the revision that
        says so, until all routers have seen it.
        """
        self._memory: dict[str, BlameMemory] = {}
        self._lines = RouterLines(attendance)
        self._entrance = RouterEntrance(self._came)
        self._welcomes = asyncio.Event()
        """Set once the hello of a router that has connected may be answered."""
        self._sockets: list[socket.socket] = []
        """Listening sockets that the device's own router brought last, until they are taken."""
        self._running = RunningTime(2 * BEAT_S)
        self._heard = 0.0
        """Time of the last sign of life of the device's own router, in seconds that this process
        has run.
        """
        self._soon: asyncio.Handle | None = None
        self._news = asyncio.Event()
        """Set, and replaced by a new event, at each message or loss of a router."""
        self.ends: Counter[str] = Counter({"died": 0, "hung": 0})
        """Numbers of the device's own routers that ended before the server, by cause."""
        self._cause: str | None = "died"
        """Cause to count for the next end of the device's own router; None once the server ends it.
        """

    async def open(self, path: Path) -> None:
        """Listen for routers, which wait for the answer to their hello until `start`. Raises
        `OSError` if no socket can be made at `path`."""
        self._path = path
        await self.listen()

    async def start(self, path: Path, welcome: RouterWelcome, keys: AccessTable) -> None:
        """From now on send each router that connects `welcome` as the answer to its hello, then
        tables and `keys`; listen if `open` was not called. Raises `OSError` if no socket can be
        made at `path`."""
        self._keys = keys
        http = welcome.http if self._http is None else self._http
        self._welcome = msgspec.structs.replace(welcome, http=http)
        if not self._entrance.is_open:
            await self.open(path)
        self._welcomes.set()

    async def listen(self) -> bool:
        """Listen at a new socket file; connected routers stay. Returns True. Raises `OSError` if no
        socket can be made.
        """
        self._entrance.listen(self._path)
        return True

    def take_sockets(self) -> list[socket.socket]:
        """Hand over the sockets that a router brought; the caller closes them."""
        sockets, self._sockets = self._sockets, []
        return sockets

    # -- what holds ---------------------------------------------------------------------

    def changed(self) -> None:
        """Note that the table may have changed: `look` runs once, soon, for all such notes."""
        if self._soon is None and self._entrance.is_open:
            self._soon = asyncio.get_running_loop().call_soon(self.look)

    def _look_if_due(self) -> None:
        if self._soon is not None:
            self.look()

    def look(self) -> None:
        """Send routers the table if it has changed, confirm drains that they have seen, and tell
        each router which answers it must not wait for any more.
        """
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if (table := table_of(self._registry, self._attendance, self._below)) != self._table:
            self._push(table)
        self._confirm()
        for name, backend in self._registry.backends.items():
            for router, number in backend.answers.take_given_up():
                if (line := self._lines.get(router)) is not None:
                    line.say(AnswersLost(name, [number]))

    def _push(self, table: RouterTable) -> None:
        before = self._open
        self._open = {row.name for row in table.tenants if row.at_once}
        there = {row.name for row in table.tenants}
        self._memory = {name: known for name, known in self._memory.items() if name in there}
        self.revision += 1
        self._table = table
        self._shut = {n: since for n, since in self._shut.items() if n not in self._open}
        self._shut |= dict.fromkeys(before - self._open, self.revision)
        self._lines.say(TableApplies(self.revision, table, time.monotonic()))

    def holds(self, keys: AccessTable) -> None:
        """Send routers another table of keys."""
        self.revision += 1
        self._keys, self._keys_revision = keys, self.revision
        self._lines.say(KeysApply(self.revision, keys))

    def limits(self, http: HttpSection) -> None:
        """Send routers this section `http`, whose limits of clients apply from now on."""
        self.revision += 1
        self._http = http.model_dump()
        if self._welcomes.is_set():
            self._welcome = msgspec.structs.replace(self._welcome, http=self._http)
        self._lines.say(HttpApplies(self.revision, self._http))

    def opens(self, doors: dict[str, str]) -> None:
        """Send routers the URLs of doors if they have changed; `doors` maps a device's name to its
        URL.
        """
        if doors != self._doors:
            self.revision += 1
            self._doors = doors
            self._lines.say(DoorsApply(self.revision, doors))

    def renews(self) -> None:
        """Order all routers to read the files of their certificate again."""
        self.revision += 1
        self._lines.say(CertificateAgain(self.revision))

    async def seen(self) -> None:
        """Return when all routers use the newest table, keys and doors.

        Returns after `SEEN_S` seconds at the latest, also without a router.
        """
        self.look()
        wanted = self.revision
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEN_S):
                while self._lines.own is None or self._lines.seen(0) < wanted:
                    await self._news.wait()

    @property
    def guests(self) -> list[str]:
        """Names of the other machines whose routers are connected, sorted."""
        return self._lines.guests

    @property
    def has_own(self) -> bool:
        """True if the device's own router is connected."""
        return self._lines.own is not None

    # -- one router ---------------------------------------------------------------------

    async def _came(self, router: RouterCame) -> None:
        decoder = from_router()
        line: RouterLine | None = None
        if router.guest == OWN:
            self._has(router.sockets)
        try:
            await self._welcomes.wait()
            line = self._takes(router)
            while (message := await receive(router.reader, decoder)) is not None:
                line.heard = self._running.seconds
                if line.guest == OWN:
                    self._heard = line.heard
                self._hear(line, message)
        except (Broken, OSError) as error:
            log.warning("the line to the router broke: %s", error)
        finally:
            router.writer.close()
            if line is not None:
                self._lost(line)

    def _has(self, sockets: list[socket.socket]) -> None:
        for one in self.take_sockets():
            one.close()
        self._sockets = sockets

    def _takes(self, router: RouterCame) -> RouterLine:
        """Take a router's connection, which replaces the one before; return its line.

        Requests that were passed on by the router before count as ended.
        """
        if (before := self._lines.get(router.guest)) is not None:
            self._lost(before)
        self.look()
        now = self._running.seconds
        line = RouterLine(router.guest, router.writer, self._attendance, self._look_if_due, now)
        self._lines.comes(line)
        memory = self._memory if router.guest == OWN else {}  # its times are of this machine
        line.say(msgspec.structs.replace(self._welcome, memory=memory))
        line.say(KeysApply(self._keys_revision, self._keys))
        line.say(HttpApplies(self._keys_revision, self._welcome.http))  # it may be serving
        if self._doors:
            line.say(DoorsApply(self.revision, self._doors))
        line.say(TableApplies(self.revision, self._table, time.monotonic()))
        return line

    def _lost(self, line: RouterLine) -> None:
        if line not in self._lines:
            return
        self._lines.goes(line)
        for name in self._registry.backends:
            self._owed(line, name, [])
        self._confirm()
        if line.guest != OWN:
            log.warning("the router of machine %s has gone", line.guest)
        elif self._cause is not None:
            self.ends[self._cause] += 1
            log.warning("the router %s: another one serves", self._cause)
            self._cause = "died"
        self._tell()

    def _hear(self, line: RouterLine, message: FromRouter) -> None:
        self._lines.hear(line, message)
        if isinstance(message, AnswersAwaited):
            self._owed(line, message.tenant, message.waits)
        elif isinstance(message, RequestsEnded):
            self._registry.ended(message.tenant, message.rows, time.monotonic())
        elif isinstance(message, EndJudged) and line.guest == OWN:
            self._memory[message.tenant] = message.memory
        self._confirm()
        self._tell()

    def _owed(self, line: RouterLine, tenant: str, waits: list[int]) -> None:
        if (backend := self._registry.backends.get(tenant)) is not None:
            backend.answers.awaits(line.guest, waits)

    def _confirm(self) -> None:
        """Confirm the drains that all routers have seen: they pass on no more requests to these
        tenants without asking, so the counts of such requests can only fall.
        """
        seen = self._lines.seen(self.revision)
        self._shut = {name: since for name, since in self._shut.items() if since > seen}
        for name in self._attendance.unconfirmed:
            if name not in self._open and name not in self._shut:
                self._attendance.confirmed(name)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # -- what others want of it ---------------------------------------------------------

    async def ended(self, tenant: str, ending: Ending) -> EndVerdict:
        """Tell routers that a tenant's engine has ended; return their verdict: which of its
        requests may have caused the end.
        """
        return await self._lines.ended(tenant, ending)

    async def connected(self) -> None:
        """Return when the device's own router has seen all that was sent."""
        while (own := self._lines.own) is None or own.seen < self.revision:
            await self._news.wait()

    async def drain(self) -> None:
        """Let routers drain; return when each of them has said that it has drained, or has left.

        Returns at the latest after `http.drain_delay_s`, `http.drain_s` and `GRACE_S` seconds
        together.
        """
        if not self._welcomes.is_set():  # no router has come
            return
        lines, http = list(self._lines), self._welcome.http
        self._lines.say(RouterDrains())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(http["drain_delay_s"] + http["drain_s"] + GRACE_S):
                while any(line in self._lines and not line.drained for line in lines):
                    await self._news.wait()

    def end(self) -> None:
        """Tell all routers that this server ends: a router that this server has started ends too,
        all others forget this device. An end of the own router counts as no failure then.

        Idempotent.
        """
        self._cause = None
        self._lines.say(RouterEnds())

    async def left(self) -> None:
        """Return when the device's own router is not connected."""
        while self._lines.own is not None:
            await self._news.wait()

    def close(self) -> None:
        """Stop listening, and close the listening sockets that a router brought and that were not
        taken. Idempotent.
        """
        self._entrance.close()
        self._has([])

    # -- time ---------------------------------------------------------------------------

    async def keep(self) -> None:
        """Look for changes every `LOOK_S` seconds, and drop the line of each router of another
        machine that has been silent for `hang_s` seconds. Never returns.
        """
        below = 0.0
        while True:
            self._running.tick(time.monotonic())
            if self._running.seconds >= below + BEAT_S:
                below = self._running.seconds
                self._below = self._registry.below_health()
            self.look()
            for line in self._lines:
                if line.guest != OWN and self._running.seconds - line.heard > self._hang_s:
                    self._lost(line)
            await asyncio.sleep(LOOK_S)

    async def hung(self, starts_s: float = 0.0) -> None:
        """Return when the device's own router has been silent for `hang_s` seconds from now on.

        The time counts from this call also if no router has connected. Before its first sign of
        life a router may be silent for `starts_s` seconds more.
        """
        begun = self._heard = self._running.seconds
        while self._running.seconds - self._heard < self._hang_s + starts_s:
            await asyncio.sleep(BEAT_S)
            starts_s = 0.0 if self._heard > begun else starts_s
        self._cause = "hung"
