"""Times at which later turns of a session are sent: not before the previous answer was read."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from mirage.workload.dealing import SESSIONS_KEPT, Session, TenantRequest

Send = Callable[[TenantRequest, float], Awaitable[None]]
"""Sends a call that was planned for a time in seconds since the start; returns when it has
ended.
"""


class SessionTurns:
    """Turns of all sessions. A turn is sent at its own time, but at least `think_s` seconds after
    the previous answer ended.
    """

    def __init__(self, think_s: float, send: Send, now: Callable[[], float]) -> None:
        """`now` returns seconds since the start."""
        self._think_s, self._send, self._now = think_s, send, now
        self._answers: OrderedDict[Session, asyncio.Future[float]] = OrderedDict()
        """End of the last turn of each session, in seconds since the start."""

    async def take(self, call: TenantRequest) -> None:
        """Send a call immediately (the caller waits until its time), or, if later, `think_s`
        seconds after the end of the session's previous turn. The calls of a session must be given
        in order."""
        if call.session is None:
            await self._send(call, call.at_s)
            return
        session = (call.tenant, call.session)
        before = self._answers.pop(session, None)
        mine = self._answers[session] = asyncio.get_running_loop().create_future()
        self._forget_oldest()
        try:
            planned = call.at_s
            if before is not None:
                planned = max(planned, await asyncio.shield(before) + self._think_s)
                await asyncio.sleep(planned - self._now())
            await self._send(call, planned)
        finally:
            mine.set_result(self._now())

    def _forget_oldest(self) -> None:
        """Forget the session without a turn for the longest time, if there are more than
        `SESSIONS_KEPT`, so that memory stays constant; dealing forgets it too.
        """
        if len(self._answers) > SESSIONS_KEPT:
            self._answers.popitem(last=False)
