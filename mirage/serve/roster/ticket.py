"""A request at the door of its tenant: passed on, waiting, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto


class NotInTime(Exception):
    """A request that cannot be served in the time that it may wait."""

    def __init__(self, wait_s: float, why: str = "") -> None:
        """`wait_s`: seconds after which the request may be worth sending again.

        `why` is a reason beside the time, if there is one.
        """
        super().__init__(f"not in time, try again in {wait_s:.0f} s")
        self.wait_s, self.why = wait_s, why


class TicketState(Enum):
    """State of a request that waits for its tenant."""

    WAITING = auto()
    PASSED = auto()
    REFUSED = auto()
    OVER = auto()


class Ticket:
    """A request. `admitted` returns once it may be passed on. Call `over` at its end."""

    def __init__(self, left: Callable[[Ticket], None]) -> None:
        """`left` hears when the request is over, in whatever state it was."""
        self.state = TicketState.WAITING
        self._left, self._answered = left, asyncio.Event()
        self.life = 0
        """Number of the engine that it was passed on to, among those of its tenant."""
        self.retry_s = 0.0
        """Seconds after which it may be sent again, once it is refused."""
        self.why = ""

    async def admitted(self) -> None:
        """Raises `NotInTime` if it is refused before."""
        await self._answered.wait()
        if self.state is TicketState.REFUSED:
            raise NotInTime(self.retry_s, self.why)

    def passes(self) -> None:
        """The request's tenant is ready."""
        self.state = TicketState.PASSED
        self._answered.set()

    def refuse(self, retry_s: float, why: str = "") -> None:
        """The request cannot wait; its tenant is ready in `retry_s`, predicted. `NotInTime.why`."""
        self.state, self.retry_s, self.why = TicketState.REFUSED, retry_s, why
        self._answered.set()

    def over(self) -> None:
        """The request is answered, or its client has gone. Idempotent."""
        if self.state is not TicketState.OVER:
            self._left(self)
            self.state = TicketState.OVER
