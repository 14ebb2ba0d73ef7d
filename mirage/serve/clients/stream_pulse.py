"""Comments in a stream of events that is silent, for proxies that give up silent connections."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from aiohttp import web

from mirage.serve.http.whole_events import WholeEvents

COMMENT = b": keep-alive\n\n"


class StreamPulse:
    """Context in which `response` gets a comment whenever it was silent for `quiet_s` seconds.

    There are no comments if `quiet_s` is None, or if the answer is no stream (`events` is None). A
    comment never stands inside an event.
    """

    def __init__(
        self, response: web.StreamResponse, events: WholeEvents | None, quiet_s: float | None
    ) -> None:
        self._response, self._events, self._quiet_s = response, events, quiet_s
        self._loop = asyncio.get_running_loop()
        self._spoke = self._loop.time()
        self._writes = False
        self._beating: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        if self._events is not None and self._quiet_s is not None:
            self._beating = asyncio.create_task(self._beat(self._events, self._quiet_s))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._beating is not None:
            self._beating.cancel()

    async def write(self, data: bytes) -> None:
        """Write `data` to the client; of a stream these are whole events."""
        self._writes = True
        try:
            await self._response.write(data)
        finally:
            self._writes = False
            self._spoke = self._loop.time()

    async def _beat(self, events: WholeEvents, quiet_s: float) -> None:
        with contextlib.suppress(ConnectionError):  # whoever reads the answer hears of it
            while True:
                await asyncio.sleep(max(0.0, self._spoke + quiet_s - self._loop.time()))
                if self._loop.time() < self._spoke + quiet_s:
                    continue
                if not events.is_open and not self._writes:
                    await self._response.write(COMMENT)
                self._spoke = self._loop.time()
