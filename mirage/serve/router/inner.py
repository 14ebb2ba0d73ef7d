"""Answers that the supervisor alone knows, asked for a client: memory, timeline, tiers."""

from __future__ import annotations

import aiohttp
from aiohttp import web

from mirage.serve import loaded
from mirage.serve.loaded import LoadedTenant
from mirage.serve.openai import ApiError
from mirage.serve.router.link import AWAY

ANSWER_S = 30.0
"""Seconds for an answer: a page of the timeline is made beside a loop that may be busy."""


class InnerClient:
    """Asks at a socket. `close` has to follow."""

    def __init__(self, socket: str) -> None:
        connector = aiohttp.UnixConnector(socket, force_close=True)
        self._session = aiohttp.ClientSession("http://supervisor", connector=connector)

    async def metrics(self) -> bytes:
        """The supervisor's metrics. Raises `TimeoutError`, `aiohttp.ClientError` and `OSError`."""
        async with self._session.get("/metrics", raise_for_status=True) as answer:
            return await answer.read()

    async def loaded(self) -> dict[str, LoadedTenant]:
        """Tenants as it knows them. Raises as `metrics` does, and `ValueError`."""
        async with self._session.get(loaded.ROUTE, raise_for_status=True) as answer:
            return loaded.decoded(await answer.read())

    async def told(self, path: str) -> bytes:
        """Body of its answer to a GET. Raises `ApiError`."""
        status, _, body = await self._asked("GET", path)
        if status != 200:
            raise ApiError(503, f"the supervisor answers {path} with {status}: see its log")
        return body

    async def passed_on(self, request: web.Request, path: str, body: bytes = b"") -> web.Response:
        """Answer to a request for `path`, with its query if it has none. Raises `ApiError`."""
        status, kind, told = await self._asked(request.method, path, body)
        return web.Response(body=told, status=status, content_type=kind)

    async def _asked(self, method: str, path: str, body: bytes = b"") -> tuple[int, str, bytes]:
        """Status, type and body of an answer. Raises `ApiError`."""
        limit = aiohttp.ClientTimeout(ANSWER_S)
        try:
            async with self._session.request(
                method, path, data=body or None, timeout=limit
            ) as answer:
                return answer.status, answer.content_type, await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError):
            message = f"{AWAY}: models are served, and this is told when it is back"
            raise ApiError(503, message, code="supervisor_away", wait_s=1.0) from None

    async def close(self) -> None:
        await self._session.close()
