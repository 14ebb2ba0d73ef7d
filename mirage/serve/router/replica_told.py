"""Health and metrics of one replica, in the form of vLLM's server."""

from __future__ import annotations

from aiohttp import web

from mirage.serve.api.openai import ApiError
from mirage.serve.router.closing import Closing
from mirage.serve.router.engine_metrics import EngineMetrics
from mirage.serve.router.sight import RequestSight


class ReplicaTold:
    """Router's own answers to requests at replicas' addresses, which are not passed on to an
    engine: health and metrics."""

    def __init__(self, sight: RequestSight, engines: EngineMetrics, closing: Closing) -> None:
        self._sight, self._engines, self._closing = sight, engines, closing

    def health(self, request: web.Request) -> web.Response:
        """Answer 200 while the replica serves, or will when it is asked; else, and once the
        server's end is announced, 503. The body is empty.
        """
        well = any(one.row.well for one in self._sight.served(request))
        return web.Response(status=200 if well and not self._closing.announced else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Metrics of the replica's engine. Raises `ApiError` if the engine told none."""
        for one in self._sight.served(request):
            if (text := await self._engines.of(one)) is not None:
                headers = {"Content-Type": "text/plain; version=0.0.4"}
                return web.Response(body=text, headers=headers)
        raise ApiError(503, "this replica has no engine now: ask again later", wait_s=1.0)
