"""One request as the router sees it: passed on at once, or once the supervisor has admitted it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mirage.serve.roster.ticket import NotInTime
from mirage.serve.routed.tenants import RoutedTenant


class RouterTicket:
    """One request. Await `admitted` if it `waits`. Call `over` at its end."""

    def __init__(
        self, tenant: RoutedTenant, number: int, left: Callable[[RouterTicket], None]
    ) -> None:
        """`number` is 0 for a request that is passed on immediately; `left` is called when it is
        over.
        """
        self._left, self.tenant, self.number = left, tenant, number
        self._engine = tenant.engine
        self._counts = False
        self._answered = asyncio.get_running_loop().create_future() if number else None

    @property
    def waits(self) -> bool:
        """True if the request needs the supervisor's admission."""
        return self._answered is not None

    async def admitted(self) -> None:
        """Wait for the supervisor's admission. Raises `NotInTime` if the supervisor refuses the
        request.
        """
        if self._answered is not None:
            await self._answered

    def answer(self, refusal: NotInTime | None) -> None:
        """Note the supervisor's answer; without a `refusal` the request may pass."""
        if self._answered is None or self._answered.done():
            return
        if refusal is None:
            self._answered.set_result(None)
        else:
            self._answered.set_exception(refusal)

    def counts(self) -> None:
        """Count this request as running at its tenant. This sends nothing: the router sends each
        tenant's count to the supervisor, which does not know the request itself. The router passed
        it on without asking, or the supervisor that admitted it has gone.
        """
        self.tenant.running += 1
        self.tenant.passed += 1
        self._engine, self._counts, self.number = self.tenant.engine, True, 0

    @property
    def passed(self) -> bool:
        """True if the supervisor has admitted the request."""
        one = self._answered
        return one is not None and one.done() and not one.cancelled() and one.exception() is None

    def over(self) -> None:
        """Note that the request has been answered, or that its client has gone."""
        if self._answered is not None and not self._answered.cancel():
            self._answered.cancelled() or self._answered.exception()  # nobody may have waited
        if self._counts and self._engine == self.tenant.engine:
            self.tenant.running -= 1
        self._left(self)
