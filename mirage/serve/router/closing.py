"""End of a server as requests see it: new ones are refused, running ones get some time.

Requests that still run after that time are broken off with the message that the server ends: by
status 503, or by an error event in a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

from mirage.serve.api.openai import ApiError
from mirage.serve.ends.comeback import LOOK_AGAIN_S

T = TypeVar("T")
DRAINING = "draining"
"""Code of an answer that refuses or breaks off a request because the server ends."""


class Closing:
    """Shutdown of the server, and the requests that still run in an engine."""

    def __init__(self) -> None:
        self.announced = False
        """True once ``/ready`` and ``/health`` announce the end."""
        self.begun = False
        """True once new requests are refused."""
        self._waiting: set[asyncio.Timeout] = set()
        """Scopes of requests that have not been given to an engine yet."""
        self._none_runs = asyncio.Event()
        self._none_runs.set()
        self._running: set[asyncio.Timeout] = set()

    def begin(self) -> None:
        """Begin the shutdown: refuse new requests and those that no engine has yet, and announce
        the end on `/ready` and `/health`. Requests that an engine has go on. Idempotent.
        """
        self.announced = self.begun = True
        for scope in self._waiting:
            scope.reschedule(0)

    def runs(self, scope: asyncio.Timeout) -> None:
        """Note that a request is with an engine, until `over`; `scope` is made to expire to break
        it off.
        """
        self._running.add(scope)
        self._none_runs.clear()

    def over(self, scope: asyncio.Timeout) -> None:
        """Note that a request has ended. Idempotent."""
        self._running.discard(scope)
        if not self._running:
            self._none_runs.set()

    async def finished(self, patience_s: float) -> None:
        """Wait until no request runs, at most `patience_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._none_runs.wait()

    def break_off(self) -> None:
        """Break off all running requests, by their scopes."""
        for scope in self._running:
            if not scope.expired():
                scope.reschedule(0)

    async def before(self, work: Awaitable[T]) -> T:
        """Result of `work`. Raises `ApiError` if the server begins to end before there is one."""
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
    """Answer to a request that is refused or broken off because the server ends."""
    message = "the server is stopping: send this again when it is back"
    return ApiError(503, message, code=DRAINING, wait_s=LOOK_AGAIN_S)
