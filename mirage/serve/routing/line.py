"""One router on the line, as the supervisor has it: its requests, and what it has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from mirage.serve.roster.attendance import Attendance
from mirage.serve.roster.ticket import NotInTime, Ticket
from mirage.serve.routed.messages import (
    Admitted,
    AskAdmission,
    Drained,
    FromRouter,
    NotAdmitted,
    RequestOver,
    TableSeen,
    TenantCount,
)
from mirage.wire import encode


class RouterLine:
    """One router's requests to the `attendance`. Call `end` at the end."""

    def __init__(
        self, writer: asyncio.StreamWriter, attendance: Attendance, look: Callable[[], None]
    ) -> None:
        """`look` says what has changed, before a request is answered by that."""
        self._writer, self._attendance, self._look = writer, attendance, look
        self.seen = 0
        """Revision that it has seen last."""
        self.drained = False
        self._tickets: dict[int, Ticket] = {}
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._counts: dict[str, TenantCount] = {}

    def say(self, message: msgspec.Struct) -> None:
        """Send it; nothing to a router that has gone."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    def hear(self, message: FromRouter) -> None:
        """Something that it said."""
        match message:
            case AskAdmission(number, tenant):
                self._asks(number, tenant)
            case RequestOver(number):
                self._over(number)
            case TableSeen(revision, counts):
                for count in counts:
                    self._counts[count.tenant] = count
                    self._attendance.counted(count.tenant, count.life, count.running)
                self.seen = max(self.seen, revision)
            case Drained():
                self.drained = True

    def end(self) -> None:
        """The router has gone, and with it all its running and waiting requests."""
        self._writer.close()
        for number in list(self._tickets):
            self._over(number)
        for count in self._counts.values():
            self._attendance.counted(count.tenant, count.life, 0)

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
