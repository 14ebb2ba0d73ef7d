"""One request that asks the supervisor for its tenant: waiting, passed on, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto


class NotInTime(Exception):
    """Refusal of a request that cannot be served in the time that it may wait."""

    def __init__(self, wait_s: float, why: str = "") -> None:
        """`wait_s` is the number of seconds after which the request may be worth sending again.

        `why` is another reason beside the time; empty if there is none.
        """
        super().__init__(f"not in time, try again in {wait_s:.0f} s")
        self.wait_s, self.why = wait_s, why


class TicketState(Enum):
    """State of a ticket: its request waits for the tenant, was passed on, was refused, or is
    over."""

    WAITING = auto()
    PASSED = auto()
    REFUSED = auto()
    OVER = auto()


class Ticket:
    """A request to a tenant. `admitted` returns once the request may be passed on to the engine.
    The caller calls `over` when the request has ended."""

    def __init__(self, left: Callable[[Ticket], None]) -> None:
        """`left` is called with this ticket when the request is over, in any state."""
        self.state = TicketState.WAITING
        self._left, self._answered = left, asyncio.Event()
        self.life = 0
        """Number of the tenant's engine that the request was passed on to."""
        self.retry_s = 0.0
        """Seconds after which a refused request may be worth sending again."""
        self.why = ""

    async def admitted(self) -> None:
        """Wait until the request may be passed on. Raises `NotInTime` if it is refused."""
        await self._answered.wait()
        if self.state is TicketState.REFUSED:
            raise NotInTime(self.retry_s, self.why)

    def passes(self) -> None:
        """Pass the request on: its tenant is ready, so that the wait ends."""
        self.state = TicketState.PASSED
        self._answered.set()

    def refuse(self, retry_s: float, why: str = "") -> None:
        """Refuse the request; `retry_s` seconds is the prediction for its tenant to be ready. `why`
        is another reason beside the time; empty if there is none."""
        self.state, self.retry_s, self.why = TicketState.REFUSED, retry_s, why
        self._answered.set()

    def over(self) -> None:
        """Note that the request was answered, or that its client has gone. Idempotent."""
        if self.state is not TicketState.OVER:
            self._left(self)
            self.state = TicketState.OVER
