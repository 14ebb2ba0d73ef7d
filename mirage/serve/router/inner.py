"""Answers of the supervisor, asked for on behalf of a client: state, timeline, tiers, metrics."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from mirage.serve.api.openai import ApiError
from mirage.serve.overview import page
from mirage.serve.registry import loaded
from mirage.serve.registry.loaded import LoadedTenant
from mirage.serve.router.engines import EngineAnswer, EngineConnections, EngineRequest
from mirage.serve.router.line import AWAY
from mirage.serve.router.link import SupervisorLink

ANSWER_S = 30.0
"""Seconds to wait for the answer to a client's request; a busy supervisor takes long for a page of
the timeline.
"""


class InnerClient:
    """Client of a supervisor, at the socket that its last `RouterWelcome` named.

    `metrics`, `loaded` and `overview` raise `aiohttp.ClientError` if the supervisor cannot be
    reached, or its answer is broken or has a status of 400 or above; and `OSError` if the
    connection breaks, or the supervisor has not answered this router's hello yet.
    """

    def __init__(self, link: SupervisorLink) -> None:
        self._link = link

    async def metrics(self) -> bytes:
        """The supervisor's metrics, in Prometheus' text format."""
        return await self._read("/metrics")

    async def loaded(self) -> dict[str, LoadedTenant]:
        """Sizes in bytes of each tenant whose engine has told its shape, by the tenant's name, and
        the seconds until the tenant is put to sleep or stopped.

        Raises `ValueError` for an answer that cannot be read.
        """
        return loaded.decoded(await self._read(loaded.ROUTE))

    async def overview(self, *, reasons: bool) -> bytes:
        """The supervisor's overview as JSON; with `reasons` it has lines of logs too."""
        return await self._read(page.OVERVIEW_ROUTE + ("?reasons=1" if reasons else ""))

    async def _read(self, path: str) -> bytes:
        answer, told = await self._asked("GET", path)
        if answer.status >= 400:
            raise aiohttp.ClientError(f"{path}: answer {answer.status}")
        return told

    async def _asked(self, method: str, path: str, body: bytes = b"") -> tuple[EngineAnswer, bytes]:
        """Answer of the supervisor, and its body.

        Raises `aiohttp.ClientError` if the supervisor cannot be reached or its answer is broken,
        and `OSError` if the connection breaks, or if the supervisor has not answered this router's
        hello yet.
        """
        if not self._link.was_welcomed:
            raise ConnectionError("no welcome yet")
        connections = EngineConnections(self._link.reach, self._link.welcome.inner)
        try:
            asking = EngineRequest(connections, method, path, CIMultiDict(), body)
            async with asking as answer:
                return answer, await answer.content.read()
        finally:
            connections.close()

    async def passed_on(self, request: web.Request, path: str, body: bytes = b"") -> web.Response:
        """Answer of the supervisor to `path`, which may have a query, with the request's method and
        this `body`.

        Raises `ApiError` if the supervisor does not answer within `ANSWER_S` seconds.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                answer, told = await self._asked(request.method, path, body)
        except (TimeoutError, aiohttp.ClientError, OSError):
            raise away() from None
        return web.Response(body=told, status=answer.status, content_type=answer.kind)


def away() -> ApiError:
    """Error 503 for a supervisor that does not answer."""
    message = f"{AWAY}: models are served, and this is told when it is back"
    return ApiError(503, message, code="supervisor_away", wait_s=1.0)
