"""Connection (line) of a supervisor to one router, at the supervisor's end: the router's requests
for admission, and the newest revision that the router has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from mirage.serve.ends.ending import Ending
from mirage.serve.roster.attendance import Attendance
from mirage.serve.roster.ticket import NotInTime, Ticket
from mirage.serve.routed.messages import (
    Admitted,
    AskAdmission,
    Drained,
    EndJudged,
    EngineEnded,
    FromRouter,
    NotAdmitted,
    RequestOver,
    TableSeen,
    TenantCount,
)
from mirage.wire import encode

JUDGED_S = 5.0
"""Most seconds that the next start of an engine waits for routers' verdicts on the last end."""


class EndVerdict(NamedTuple):
    """Verdict of routers on an engine that ended: which of its requests may have caused the end.
    `words` are appended to the log line about the end.
    """

    words: str = ""
    bodies: frozenset[str] = frozenset()
    """Digests of the bodies of requests that may have ended the engine."""


class RouterLine:
    """Connection to one router, and its requests, which the `attendance` admits. Call `end` when
    the connection has ended.
    """

    def __init__(
        self,
        guest: str,
        writer: asyncio.StreamWriter,
        attendance: Attendance,
        look: Callable[[], None],
        heard: float,
    ) -> None:
        """`guest` is the name of the machine whose router it is, empty for the device's own;
        `heard` is the present time, in seconds that this process has run. `look` sends routers a
        table that has changed; it is called before each answer about an admission, so that the
        table arrives first.
        """
        self.guest, self.heard = guest, heard
        """Time of the router's last sign of life, in seconds that this process has run."""
        self._writer, self._attendance, self._look = writer, attendance, look
        self.seen = 0
        """Newest revision that the router has seen."""
        self.drained = False
        self._tickets: dict[int, Ticket] = {}
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._counts: dict[str, TenantCount] = {}
        self._verdicts: dict[str, asyncio.Future[EndVerdict]] = {}

    def say(self, message: msgspec.Struct) -> None:
        """Send a message; nothing happens if the router has gone."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    def hear(self, message: FromRouter) -> None:
        """Act on a message of the router: a request's admission or end, its counts, the end of a
        drain, or its verdict on the end of an engine."""
        match message:
            case AskAdmission(number, tenant):
                self._asks(number, tenant)
            case RequestOver(number):
                self._over(number)
            case TableSeen(revision, counts):
                self._counts |= {count.tenant: count for count in counts}
                self.seen = max(self.seen, revision)
            case Drained():
                self.drained = True
            case EndJudged(tenant, words, bodies):
                self._judged(tenant, EndVerdict(words, frozenset(bodies)))

    def counted(self, tenant: str, life: int) -> int:
        """Number of requests that run at the tenant's engine number `life`, by the router's counts
        (`TenantCount`).
        """
        count = self._counts.get(tenant)
        return count.running if count is not None and count.life == life else 0

    def end(self) -> list[TenantCount]:
        """Close the connection to a router that has gone, end its requests, and use empty verdicts
        where its verdict is awaited.

        Returns the router's last counts.
        """
        self._writer.close()
        for number in list(self._tickets):
            self._over(number)
        for tenant in self._verdicts:
            self._judged(tenant, EndVerdict())
        counts, self._counts = list(self._counts.values()), {}
        return counts

    async def ended(self, tenant: str, ending: Ending) -> EndVerdict:
        """Tell the router that a tenant's engine has ended; return the router's verdict on the
        requests that ran there: which of them may have caused the end.

        The verdict is empty if it does not come within `JUDGED_S` seconds.
        """
        verdict: asyncio.Future[EndVerdict] = asyncio.get_running_loop().create_future()
        self._verdicts[tenant] = verdict
        self.say(EngineEnded(tenant, ending))
        try:
            async with asyncio.timeout(JUDGED_S):
                return await verdict
        except TimeoutError:
            return EndVerdict()
        finally:
            del self._verdicts[tenant]

    def _judged(self, tenant: str, verdict: EndVerdict) -> None:
        waits = self._verdicts.get(tenant)
        if waits is not None and not waits.done():
            waits.set_result(verdict)

    def _asks(self, number: int, tenant: str) -> None:
        try:
            ticket = self._tickets[number] = self._attendance.ask(tenant)
        except NotInTime as error:
            self._refuse(number, error)
            return
        task = self._waiting[number] = asyncio.create_task(self._answer(number, ticket))
        task.add_done_callback(lambda task: self._waiting.pop(number, None))

    async def _answer(self, number: int, ticket: Ticket) -> None:
        try:
            await ticket.admitted()
        except NotInTime as error:
            self._refuse(number, error)
        else:
            self._look()
            self.say(Admitted(number))

    def _refuse(self, number: int, error: NotInTime) -> None:
        self._look()
        self.say(NotAdmitted(number, error.wait_s, error.why))

    def _over(self, number: int) -> None:
        if (task := self._waiting.pop(number, None)) is not None:
            task.cancel()
        if (ticket := self._tickets.pop(number, None)) is not None:
            ticket.over()
