"""The supervisor's end of the lines to its routers: a table pushed, ends of engines judged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from pathlib import Path

import msgspec

from mirage.control.liveness import RunningTime
from mirage.serve.access.forms import NO_KEYS, AccessTable
from mirage.serve.ends.ending import Ending
from mirage.serve.registry import Registry
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
"""Seconds between two looks for what nobody told of."""
SEEN_S = 2.0
"""Seconds that others wait for a router to see what holds."""


class RouterDesk:
    """The supervisor's side of its routers: tells them what the registry and the roster say.

    `keep` has to run. A router that connects takes the place of the one before. Beside the device's
    own, those of machines may come, before devices of several.
    """

    def __init__(self, registry: Registry, attendance: Attendance, hang_s: float) -> None:
        """A router that is silent for `hang_s` seconds is taken for hung."""
        self._registry, self._attendance, self._hang_s = registry, attendance, hang_s
        self._welcome: RouterWelcome
        self._keys = NO_KEYS
        self._doors: dict[str, str] = {}
        self._table = RouterTable()
        self.revision = 1
        """Number of the newest of what was pushed."""
        self._keys_revision = 1
        self._below = registry.below_health()
        self._open: set[str] = set()
        """Tenants to which it passes requests on without asking."""
        self._shut: dict[str, int] = {}
        """Revision since which a router asks before it passes on to a tenant, until it says so."""
        self._memory: dict[str, BlameMemory] = {}
        self._lines = RouterLines(attendance)
        self._entrance = RouterEntrance(self._came)
        self._welcomes = asyncio.Event()
        """Set once a router that has come may serve by what holds here."""
        self._sockets: list[socket.socket] = []
        """Sockets that the last router listens on."""
        self._running = RunningTime(2 * BEAT_S)
        self._heard = 0.0
        """Time of the last sign of life of the device's own router, in seconds for which this
        process has run.
        """
        self._soon: asyncio.Handle | None = None
        self._news = asyncio.Event()
        """Set, and replaced, whenever a router has said something that others wait for."""
        self.ends: Counter[str] = Counter({"died": 0, "hung": 0})
        """Routers that have ended, or were ended, before the server."""
        self._cause: str | None = "died"
        """Cause of the next end of a router; None once the server has it end."""

    async def open(self, path: Path) -> None:
        """Let a router come, which waits until `start`. Raises `OSError`."""
        self._path = path
        await self.listen()

    async def start(self, path: Path, welcome: RouterWelcome, keys: AccessTable) -> None:
        """Welcome routers. Raises `OSError`."""
        self._welcome, self._keys = welcome, keys
        if not self._entrance.is_open:
            await self.open(path)
        self._welcomes.set()

    async def listen(self) -> bool:
        """Listen, again if the socket is gone; connections stay. Raises `OSError`."""
        self._entrance.listen(self._path)
        return True

    def take_sockets(self) -> list[socket.socket]:
        """Sockets that a router has brought, the caller's from now on."""
        sockets, self._sockets = self._sockets, []
        return sockets

    # -- what holds ---------------------------------------------------------------------

    def changed(self) -> None:
        """Something may have changed: look soon, once for all of this turn of the loop."""
        if self._soon is None and self._entrance.is_open:
            self._soon = asyncio.get_running_loop().call_soon(self.look)

    def _look_if_due(self) -> None:
        if self._soon is not None:
            self.look()

    def look(self) -> None:
        """Push the table if it is another one."""
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
        self._lines.say(TableApplies(self.revision, table))

    def holds(self, keys: AccessTable) -> None:
        """Have other keys from now on."""
        self.revision += 1
        self._keys, self._keys_revision = keys, self.revision
        self._lines.say(KeysApply(self.revision, keys))

    def opens(self, doors: dict[str, str]) -> None:
        """Have the router go to devices by these doors from now on."""
        if doors != self._doors:
            self.revision += 1
            self._doors = doors
            self._lines.say(DoorsApply(self.revision, doors))

    def renews(self) -> None:
        """Have the router read its certificate again, as another one does when it starts."""
        self.revision += 1
        self._lines.say(CertificateAgain(self.revision))

    async def seen(self) -> None:
        """Return when all routers do as what holds now says, or are too slow, or none is there."""
        self.look()
        wanted = self.revision
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEN_S):
                while self._lines.own is None or self._lines.seen(0) < wanted:
                    await self._news.wait()

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
        """Another router takes over: what the one before had running has ended."""
        if (before := self._lines.get(router.guest)) is not None:
            self._lost(before)
        self.look()
        now = self._running.seconds
        line = RouterLine(router.guest, router.writer, self._attendance, self._look_if_due, now)
        self._lines.comes(line)
        memory = self._memory if router.guest == OWN else {}  # its times are of this machine
        line.say(msgspec.structs.replace(self._welcome, memory=memory))
        line.say(KeysApply(self._keys_revision, self._keys))
        if self._doors:
            line.say(DoorsApply(self.revision, self._doors))
        line.say(TableApplies(self.revision, self._table))
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
        """Tell of drains that all routers have seen, if they had to: what they passed on counts."""
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
        """A tenant's engine has ended: what its requests have to do with that."""
        return await self._lines.ended(tenant, ending)

    async def connected(self) -> None:
        """Return when a router has seen all that holds."""
        while (own := self._lines.own) is None or own.seen < self.revision:
            await self._news.wait()

    async def drain(self) -> None:
        """Return when no request runs any more, and new ones are refused; or no router is there."""
        lines = list(self._lines)
        self._lines.say(RouterDrains())
        while any(line in self._lines and not line.drained for line in lines):
            await self._news.wait()

    def end(self) -> None:
        """Have the device's own router end, and others ask for it no more. Idempotent."""
        self._cause = None
        self._lines.say(RouterEnds())

    async def left(self) -> None:
        """Return when the device's own router is not on the line."""
        while self._lines.own is not None:
            await self._news.wait()

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._entrance.close()
        self._has([])

    # -- time ---------------------------------------------------------------------------

    async def keep(self) -> None:
        """Look again and again. Never returns."""
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

    async def hung(self) -> None:
        """Return when the router has been silent for too long from now on, be it never there."""
        self._heard = self._running.seconds
        while self._running.seconds - self._heard < self._hang_s:
            await asyncio.sleep(BEAT_S)
        self._cause = "hung"
