"""The supervisor's end of the line to its router: a table pushed, ends of engines judged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

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
    EndJudged,
    EngineEnded,
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
from mirage.serve.routing.line import RouterLine
from mirage.serve.routing.made import table_of
from mirage.wire import Broken, receive

log = logging.getLogger(__name__)

LOOK_S = 0.05
"""Seconds between two looks for what nobody told of."""
SEEN_S = 2.0
"""Seconds that others wait for a router to see what holds."""
JUDGED_S = 5.0
"""Seconds that the next start of an engine waits for a router to judge the end of the last."""


class EndVerdict(NamedTuple):
    """Verdict on the requests that an engine ended with; `words` follow those of the end."""

    words: str = ""
    bodies: frozenset[str] = frozenset()
    """Fingerprints of requests that may have ended it."""


class RouterDesk:
    """The supervisor's side of one router: tells it what the registry and the roster say.

    `keep` has to run. A router that connects takes the place of the one before.
    """

    def __init__(self, registry: Registry, attendance: Attendance, hang_s: float) -> None:
        """A router that is silent for `hang_s` seconds is taken for hung."""
        self._registry, self._attendance, self._hang_s = registry, attendance, hang_s
        self._welcome: RouterWelcome
        self._keys = NO_KEYS
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
        self._line: RouterLine | None = None
        self._entrance = RouterEntrance(self._came)
        self._welcomes = asyncio.Event()
        """Set once a router that has come may serve by what holds here."""
        self._sockets: list[socket.socket] = []
        """Sockets that the last router listens on."""
        self._running = RunningTime(2 * BEAT_S)
        self._heard = 0.0
        """Time of the router's last sign of life, in seconds for which this process has run."""
        self._soon: asyncio.Handle | None = None
        self._news = asyncio.Event()
        """Set, and replaced, whenever the router has said something that others wait for."""
        self._verdicts: dict[str, asyncio.Future[EndVerdict]] = {}
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
            if (waits := backend.answers.take_given_up()) and self._line is not None:
                self._line.say(AnswersLost(name, waits))

    def _push(self, table: RouterTable) -> None:
        before = self._open
        self._open = {row.name for row in table.tenants if row.at_once}
        there = {row.name for row in table.tenants}
        self._memory = {name: known for name, known in self._memory.items() if name in there}
        self.revision += 1
        self._table = table
        self._shut = {n: since for n, since in self._shut.items() if n not in self._open}
        self._shut |= dict.fromkeys(before - self._open, self.revision)
        if self._line is not None:
            self._line.say(TableApplies(self.revision, table))

    def holds(self, keys: AccessTable) -> None:
        """Have other keys from now on."""
        self.revision += 1
        self._keys, self._keys_revision = keys, self.revision
        if self._line is not None:
            self._line.say(KeysApply(self.revision, keys))

    def renews(self) -> None:
        """Have the router read its certificate again, as another one does when it starts."""
        self.revision += 1
        if self._line is not None:
            self._line.say(CertificateAgain(self.revision))

    async def seen(self) -> None:
        """Return when the router does as all that holds now says, or is too slow or away."""
        self.look()
        wanted = self.revision
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEN_S):
                while self._line is None or self._line.seen < wanted:
                    await self._news.wait()

    # -- one router ---------------------------------------------------------------------

    async def _came(self, router: RouterCame) -> None:
        decoder = from_router()
        line: RouterLine | None = None
        self._has(router.sockets)
        try:
            await self._welcomes.wait()
            line = self._takes(router.writer)
            while (message := await receive(router.reader, decoder)) is not None:
                self._heard = self._running.seconds
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

    def _takes(self, writer: asyncio.StreamWriter) -> RouterLine:
        """Another router takes over: what the one before had running has ended."""
        if self._line is not None:
            self._lost(self._line)
        self.look()
        line = self._line = RouterLine(writer, self._attendance, self._look_if_due)
        line.say(msgspec.structs.replace(self._welcome, memory=self._memory))
        line.say(KeysApply(self._keys_revision, self._keys))
        line.say(TableApplies(self.revision, self._table))
        return line

    def _lost(self, line: RouterLine) -> None:
        if self._line is not line:
            return
        self._line = None
        line.end()
        for name in self._registry.backends:
            self._owed(name, [])
        self._confirm()
        if self._cause is not None:
            self.ends[self._cause] += 1
            log.warning("the router %s: another one serves", self._cause)
            self._cause = "died"
        for verdict in self._verdicts.values():
            if not verdict.done():
                verdict.set_result(EndVerdict())
        self._tell()

    def _hear(self, line: RouterLine, message: FromRouter) -> None:
        line.hear(message)
        if isinstance(message, AnswersAwaited):
            self._owed(message.tenant, message.waits)
        elif isinstance(message, RequestsEnded):
            self._registry.ended(message.tenant, message.rows, time.monotonic())
        elif isinstance(message, EndJudged):
            self._memory[message.tenant] = message.memory
            verdict = self._verdicts.get(message.tenant)
            if verdict is not None and not verdict.done():
                verdict.set_result(EndVerdict(message.words, frozenset(message.bodies)))
        self._confirm()
        self._tell()

    def _owed(self, tenant: str, waits: list[int]) -> None:
        if (backend := self._registry.backends.get(tenant)) is not None:
            backend.answers.waits = waits

    def _confirm(self) -> None:
        """Tell of drains that the router has seen, if it had to: what it passed on is counted."""
        seen = self.revision if self._line is None else self._line.seen
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
        if self._line is None:
            return EndVerdict()
        verdict: asyncio.Future[EndVerdict] = asyncio.get_running_loop().create_future()
        self._verdicts[tenant] = verdict
        self._line.say(EngineEnded(tenant, ending))
        try:
            async with asyncio.timeout(JUDGED_S):
                return await verdict
        except TimeoutError:
            return EndVerdict()
        finally:
            del self._verdicts[tenant]

    async def connected(self) -> None:
        """Return when a router has seen all that holds."""
        while self._line is None or self._line.seen < self.revision:
            await self._news.wait()

    async def drain(self) -> None:
        """Return when no request runs any more, and new ones are refused; or no router is there."""
        if (line := self._line) is None:
            return
        line.say(RouterDrains())
        while self._line is line and not line.drained:
            await self._news.wait()

    def end(self) -> None:
        """Have the router end. Idempotent."""
        self._cause = None
        if self._line is not None:
            self._line.say(RouterEnds())

    async def left(self) -> None:
        """Return when no router is on the line."""
        while self._line is not None:
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
            await asyncio.sleep(LOOK_S)

    async def hung(self) -> None:
        """Return when the router has been silent for too long from now on, be it never there."""
        self._heard = self._running.seconds
        while self._running.seconds - self._heard < self._hang_s:
            await asyncio.sleep(BEAT_S)
        self._cause = "hung"
