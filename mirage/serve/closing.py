"""The end of a server as its requests see it: new ones are refused, running ones get a moment.

After that moment each is broken off and told that the server ends: by 503, or by an error event
in a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

from mirage.serve.ends.comeback import LOOK_AGAIN_S
from mirage.serve.openai import ApiError

T = TypeVar("T")
DRAINING = "draining"
"""Code of an answer that says so."""


class Closing:
    """Shutdown of the server, and the requests that still run in an engine."""

    def __init__(self) -> None:
        self.announced = False
        """True once the end is told to who asks whether it is ready."""
        self.begun = False
        """True once new requests are refused."""
        self._waiting: set[asyncio.Timeout] = set()
        """Scopes of requests that are with no engine yet."""
        self._none_runs = asyncio.Event()
        self._none_runs.set()
        self._running: set[asyncio.Timeout] = set()

    def begin(self) -> None:
        """Refuse new requests from now on. Idempotent."""
        self.announced = self.begun = True
        for scope in self._waiting:
            scope.reschedule(0)

    def runs(self, scope: asyncio.Timeout) -> None:
        """A request is with an engine until `over`; `scope` expires if it is broken off."""
        self._running.add(scope)
        self._none_runs.clear()

    def over(self, scope: asyncio.Timeout) -> None:
        """The request has ended. Idempotent."""
        self._running.discard(scope)
        if not self._running:
            self._none_runs.set()

    async def finished(self, patience_s: float) -> None:
        """Wait until no request runs, at most `patience_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._none_runs.wait()

    def break_off(self) -> None:
        """End what runs, see `runs`."""
        for scope in self._running:
            if not scope.expired():
                scope.reschedule(0)

    async def before(self, work: Awaitable[T]) -> T:
        """The result of `work`. Raises `ApiError` if the end begins before there is one."""
        scope = asyncio.timeout(0 if self.begun else None)
        self._waiting.add(scope)
        try:
            async with scope:
                return await work
        except TimeoutError:
            if not scope.expired():
                raise
            raise ends() from None
        finally:
            self._waiting.discard(scope)


def ends() -> ApiError:
    """Answer to a request that comes while the server ends."""
    message = "the server is stopping: send this again when it is back"
    return ApiError(503, message, code=DRAINING, wait_s=LOOK_AGAIN_S)
