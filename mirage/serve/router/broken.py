"""Reason why a request was broken off, which depends on how its engine ended."""

from __future__ import annotations

import asyncio
import contextlib
import time

import aiohttp
from multidict import CIMultiDict

from mirage.serve.api.openai import ApiError
from mirage.serve.ends.suspects import RequestFacts
from mirage.serve.routed.tenants import RoutedTenant
from mirage.serve.router.closing import Closing, ends
from mirage.serve.router.engines import EngineConnections, EngineRequest
from mirage.serve.router.refusals import ended_with

BLAME_S = 5.0
"""Seconds that a request which broke off waits for the supervisor's word on how its engine
ended.
"""


class BrokenOff:
    """Finds out why a request broke off: by the end of the engine that its tenant had when this
    object was made."""

    def __init__(
        self,
        tenant: RoutedTenant,
        told: RequestFacts,
        engine: EngineConnections,
        closing: Closing,
    ) -> None:
        self._tenant, self._told = tenant, told
        self._engine, self._closing = engine, closing
        self._end = tenant.end

    async def why(self, number: int, error: Exception | str, *, read: bool = True) -> ApiError:
        """Error to answer request `number` of its tenant with, after waiting for the engine's end.

        The wait takes `BLAME_S` seconds at most. `read` is false if the engine cannot have begun to
        read the request. The error names an engine's end, or just a lost connection if none is
        known by then. While the server ends, the error says so, and nothing is waited for.
        """
        if self._closing.begun:
            return ends()
        if read and not self._end.is_set():
            self._tenant.breaks(self._told.body_digest, time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BLAME_S):
                await self._end.wait()
        blame = self._tenant.suspects.blame(number)
        if blame is not None:
            return ended_with(self._told.model, self._told.body_digest, blame)
        # The message of an exception may have the path of a socket.
        what = error if isinstance(error, str) else type(error).__name__
        return ApiError(
            502, f"model {self._told.model!r}: the connection to its engine was lost ({what})"
        )

    async def engine_is_dead(self) -> bool:
        """True if an engine that has answered 500 has lost its core, by its own ``/health``."""
        if self._end.is_set():
            return True
        try:
            health = EngineRequest(self._engine, "GET", "/health", CIMultiDict())
            async with health as answer:
                return answer.status != 200
        except (aiohttp.ClientError, OSError):
            return True
