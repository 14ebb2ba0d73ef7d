"""Requests at the router's end of the connection to a supervisor (a line), and messages to the
supervisor about them.
"""

from __future__ import annotations

import asyncio

import msgspec

from mirage.serve.ends.comeback import LOOK_AGAIN_S
from mirage.serve.roster.ticket import NotInTime
from mirage.serve.routed.messages import (
    BEAT_S,
    AnswersAwaited,
    AskAdmission,
    RequestOver,
    RequestsEnded,
    RouterAlive,
    TableSeen,
    TenantCount,
)
from mirage.serve.routed.tenants import RoutedTenant, RoutedTenants
from mirage.serve.router.ticket import RouterTicket
from mirage.wire import encode

TELL_S = 0.005
"""Seconds for which changed counts are collected before they are sent."""
AWAY = "the supervisor is away"


class RequestsOnLine:
    """Requests for `tenants`, and the messages to their supervisor about them.

    Call `begin` with each new connection to the supervisor, and `lost` at its end.
    """

    def __init__(self, tenants: RoutedTenants) -> None:
        self._tenants = tenants
        self._writer: asyncio.StreamWriter | None = None
        self._number = 0
        self._waiting: dict[int, RouterTicket] = {}
        """Requests that wait for the supervisor or were admitted by it, by the numbers that it
        knows.
        """
        self._revision = 0
        self._told: dict[str, TenantCount] = {}
        self._telling: asyncio.TimerHandle | None = None

    @property
    def is_up(self) -> bool:
        """True while the supervisor is connected."""
        return self._writer is not None

    def begin(self, writer: asyncio.StreamWriter) -> None:
        """Use a new connection, to a supervisor that knows of no request yet."""
        self._writer, self._revision = writer, 0
        self._told.clear()

    def lost(self) -> None:
        """Note that the connection is lost.

        Waiting requests are refused. Admitted ones are counted here until they end.
        """
        self._writer = None
        waiting, self._waiting = self._waiting, {}
        for ticket in waiting.values():
            ticket.answer(NotInTime(LOOK_AGAIN_S, AWAY))
            if ticket.passed:
                ticket.counts()

    def ask(self, tenant: RoutedTenant) -> RouterTicket:
        """Ticket for a new request to a tenant, which may have to wait for the supervisor.

        Raises `NotInTime` if it would have to wait and the supervisor is away.
        """
        if tenant.row.at_once:
            ticket = RouterTicket(tenant, 0, self._over)
            ticket.counts()
            self._tell_soon()
            return ticket
        if not self.is_up:
            raise NotInTime(LOOK_AGAIN_S, AWAY)
        self._number += 1
        ticket = self._waiting[self._number] = RouterTicket(tenant, self._number, self._over)
        self.say(AskAdmission(self._number, tenant.name))
        return ticket

    def answered(self, number: int, refusal: NotInTime | None) -> None:
        """Note the supervisor's answer to request `number`; without a `refusal` it may pass."""
        if (ticket := self._waiting.get(number)) is not None:
            ticket.answer(refusal)

    def _over(self, ticket: RouterTicket) -> None:
        """Note that a request has ended, and tell the supervisor."""
        if ticket.number and self._waiting.pop(ticket.number, None) is not None:
            self.say(RequestOver(ticket.number))
        else:
            self._tell_soon()

    # -- what is told -------------------------------------------------------------------

    def say(self, message: msgspec.Struct) -> None:
        """Send a message; without a supervisor it is dropped."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))

    def saw(self, revision: int) -> None:
        """Tell the supervisor that all its messages up to this revision have been carried out."""
        self._revision = max(self._revision, revision)
        self._tell()

    async def beat(self) -> None:
        """Send signs of life, the waits for answers, and facts of ended requests. Never returns."""
        awaited: dict[str, list[int]] = {}
        while True:
            self.say(RouterAlive())
            before, awaited = awaited, {one.name: one.answers.take_long() for one in self._tenants}
            for name, waits in awaited.items():
                if waits != before.get(name, []):
                    self.say(AnswersAwaited(name, waits))
            self._tell_ended()
            await asyncio.sleep(BEAT_S)

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(TELL_S, self._tell)

    def _tell(self) -> None:
        """Send the revision that was seen last, and each tenant's count that has changed."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        counts = [one.count for one in self._tenants if one.count != self._told.get(one.name)]
        self._told = {one.name: one.count for one in self._tenants}
        self.say(TableSeen(self._revision, counts))

    def _tell_ended(self) -> None:
        """Send lengths and times of ended requests; without a supervisor they are kept."""
        if self._writer is not None and not self._writer.is_closing():
            for one in self._tenants:
                if rows := one.untold.take():
                    self.say(RequestsEnded(one.name, rows))
