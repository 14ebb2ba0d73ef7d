"""HTTP server of the supervisor, at a socket that only its router asks.

The router has already checked keys, and the origin of requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from aiohttp import web

from mirage.serve.api.openai import ApiError, errors_as_json
from mirage.serve.http.private_site import PrivateSite
from mirage.serve.metrics.registry import rendered
from mirage.serve.overview import page
from mirage.serve.registry import history, loaded
from mirage.serve.registry.registry import Registry
from mirage.serve.routed import resizing
from mirage.serve.routed.resizing import Resize, resize_in
from mirage.serve.routing.desk import RouterDesk


class Overview(Protocol):
    """Function that makes an overview as JSON; see `mirage.serve.overview.forms`."""

    def __call__(self, *, reasons: bool) -> Awaitable[bytes]: ...


class InnerServer:
    """Private HTTP server that only the router asks. It answers from `registry`, with `overview`,
    and passes a change of the tiers' sizes to `resize`."""

    def __init__(
        self,
        registry: Registry,
        desk: RouterDesk,
        resize: Callable[[Resize], Awaitable[None]],
        overview: Overview,
    ) -> None:
        self._registry, self._desk, self._resize = registry, desk, resize
        self._made_overview = overview
        self.site = PrivateSite()

    async def start(self, path: Path) -> None:
        """Listen at `path`. Raises `OSError` if no socket can be made there."""
        app = web.Application(middlewares=[errors_as_json])
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/mirage/state", self._state),
                web.get(loaded.ROUTE, self._loaded),
                web.get(history.ROUTE, self._timeline),
                web.get(page.OVERVIEW_ROUTE, self._overview),
                web.post(resizing.ROUTE, self._tiers),
            ]
        )
        await self.site.start(app, path)

    async def stop(self) -> None:
        """Stop serving. Idempotent."""
        await self.site.stop()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=rendered(self._registry, self._desk.ends))

    async def _state(self, request: web.Request) -> web.Response:
        """Answer with the body of ``/mirage/state``, once routers have the newest table."""
        await self._desk.seen()
        return web.json_response(self._registry.state(reasons="reasons" in request.query))

    async def _loaded(self, request: web.Request) -> web.Response:
        return web.Response(body=loaded.encoded(loaded.loaded(self._registry)))

    async def _timeline(self, request: web.Request) -> web.Response:
        return await history.answer(self._registry, request)

    async def _overview(self, request: web.Request) -> web.Response:
        body = await self._made_overview(reasons="reasons" in request.query)
        return web.Response(body=body, content_type="application/json")

    async def _tiers(self, request: web.Request) -> web.Response:
        """Resize the tiers; answer with their budgets, while copies may still be moved."""
        try:
            await self._resize(resize_in(await request.read()))
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        return web.json_response(self._registry.tiers())
