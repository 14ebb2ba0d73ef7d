"""Routes of the server itself: health from the table, and answers of the supervisor."""

from __future__ import annotations

from aiohttp import web

from mirage.serve.api.openai import ApiError
from mirage.serve.overview import page
from mirage.serve.registry import history
from mirage.serve.routed import resizing
from mirage.serve.routed.resizing import check_resizer
from mirage.serve.router.closing import Closing
from mirage.serve.router.devices import RoutedDevices
from mirage.serve.router.engine_metrics import EngineMetrics
from mirage.serve.router.engines import EnginesConnected
from mirage.serve.router.gate import AccessGate
from mirage.serve.router.inner import InnerClient
from mirage.serve.router.listed import ListedRoutes
from mirage.serve.router.metrics import RouterMetrics
from mirage.serve.router.openapi import OWN_PATH, openapi_text
from mirage.serve.router.overviews import SharedOverview
from mirage.serve.router.replica_address import REPLICA
from mirage.serve.router.replica_told import ReplicaTold
from mirage.serve.router.scrape import MetricsScrape
from mirage.serve.router.sight import RequestSight

DEVICE = "device"
"""Key of a query that names one of several devices."""


class OwnRoutes:
    """Routes of the server itself: health, metrics, state and others. Call `close` at the end."""

    def __init__(
        self,
        tenants: RoutedDevices,
        sight: RequestSight,
        gate: AccessGate,
        metrics: RouterMetrics,
        closing: Closing,
        engines: EnginesConnected,
    ) -> None:
        self._tenants, self._sight, self._closing = tenants, sight, closing
        self._host = tenants.first.welcome.host
        told = EngineMetrics(tenants, engines)
        self._replica = ReplicaTold(sight, told, closing)
        self._inners = {name: InnerClient(link) for name, link in tenants.links.items()}
        """Clients of the supervisors by device; the name is empty if there is only one."""
        above = {"": InnerClient(tenants.first)}
        self._scrape = MetricsScrape(metrics, told, above | self._inners)
        self._listed = ListedRoutes(tenants, gate, self._inners)
        self._overviews = {name: SharedOverview(one) for name, one in self._inners.items()}

    def routes(self) -> list[web.RouteDef]:
        """All routes of this class."""
        return [
            web.get("/live", self._live),
            web.get("/ready", self._ready),
            web.get("/health", self._health),
            web.get("/health/{model:.+}", self._health_of),
            web.get(OWN_PATH, self._openapi),
            web.get("/metrics", self._render),
            web.get("/mirage/state", self._state),
            web.get(history.ROUTE, self._timeline),
            web.get(page.PAGE_ROUTE, self._page),
            web.get(page.OVERVIEW_ROUTE, self._overview),
            web.post(resizing.ROUTE, self._tiers),
            *self._listed.routes(),
        ]

    def close(self) -> None:
        """Stop asking engines and supervisors. Idempotent."""
        self._scrape.close()
        self._listed.close()
        for overview in self._overviews.values():
            overview.close()

    # -- known here ---------------------------------------------------------------------

    async def _live(self, request: web.Request) -> web.Response:
        """Answer 200: this process answers."""
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        """Answer 200 if the health is ok or degraded and the end is not announced, else 503."""
        well = self._tenants.health(reasons=False)["status"] in ("ok", "degraded")
        ready = well and not self._closing.announced
        return web.json_response(
            {"status": "ok" if ready else "down"}, status=200 if ready else 503
        )

    async def _health(self, request: web.Request) -> web.Response:
        if REPLICA in request:
            return self._replica.health(request)
        body = self._tenants.health(reasons=self._sight.is_near(request))
        if self._closing.announced:
            body["status"] = "stopping"
        serves = body["status"] in ("ok", "degraded")
        return web.json_response(body, status=200 if serves else 503)

    async def _health_of(self, request: web.Request) -> web.Response:
        """Answer 200 if the tenant or a replica serves, or will when it is asked; else 503."""
        replicas = self._sight.replicas(request, request.match_info["model"])
        row = next((one.row for one in replicas if one.row.well), replicas[0].row)
        body = {"status": row.state.value}
        if row.reason and self._sight.is_near(request):
            body["reason"] = row.reason
        return web.json_response(body, status=200 if row.well else 503)

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.Response(body=openapi_text(), content_type="application/json")

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(body=page.page_html(), headers=page.page_headers())

    # -- asked of the supervisor --------------------------------------------------------

    async def _render(self, request: web.Request) -> web.Response:
        if REPLICA in request:
            return await self._replica.metrics(request)
        headers = {"Content-Type": "text/plain; version=0.0.4"}
        return web.Response(body=await self._scrape.text(), headers=headers)

    async def _state(self, request: web.Request) -> web.Response:
        reasons = "?reasons=1" if self._sight.is_near(request) else ""
        inner = self._inners[self._asked(request)]
        return await inner.passed_on(request, f"/mirage/state{reasons}")

    async def _timeline(self, request: web.Request) -> web.Response:
        return await self._inners[self._asked(request)].passed_on(request, request.path_qs)

    async def _overview(self, request: web.Request) -> web.Response:
        overview = self._overviews[self._asked(request)]
        body = await overview.told(reasons=self._sight.is_near(request))
        headers = {"Cache-Control": "no-store"}
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _tiers(self, request: web.Request) -> web.Response:
        check_resizer(request, self._host)
        inner = self._inners[self._asked(request)]
        return await inner.passed_on(request, resizing.ROUTE, await request.read())

    def _asked(self, request: web.Request) -> str:
        """Name of the device that a request is about; empty if only one is served. Raises
        `ApiError` if several are served and the query names no device, or an unknown one.
        """
        name = request.query.get(DEVICE, "") if self._tenants.several else ""
        if name not in self._inners:
            known = ", ".join(self._inners)
            raise ApiError(400, f"several devices are served: name one of {known} by ?device=")
        return name
