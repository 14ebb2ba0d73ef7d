"""Routes by which tools of Ollama and llama-swap see what is loaded."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from aiohttp import web

import mirage
from mirage.serve.routed.table import RoutedRow
from mirage.serve.routed.tenants import RoutedTenants
from mirage.serve.router import listings
from mirage.serve.router.asked_source import AskedSource, renewed
from mirage.serve.router.gate import AccessGate
from mirage.serve.router.inner import InnerClient
from mirage.serve.router.listings import Loaded, Opens

PATIENCE_S = 1.0
"""Seconds for which the supervisor is waited for, without which sizes are what it told last."""


class ListedRoutes:
    """Routes that change nothing; a key sees its tenants alone. `close` has to follow."""

    def __init__(
        self, tenants: RoutedTenants, gate: AccessGate, inner: InnerClient, created: int
    ) -> None:
        """`created` is the time at which the server began, in seconds since 1970."""
        self._tenants, self._gate, self._created = tenants, gate, created
        self._source = AskedSource(inner.loaded)

    def routes(self) -> list[web.RouteDef]:
        """All of them."""
        return [
            web.get("/api/version", self._version),
            web.get("/api/tags", self._tags),
            web.get("/api/ps", self._ps),
            web.get("/running", self._running),
        ]

    def close(self) -> None:
        """Ask nobody any more. Idempotent."""
        self._source.close()

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": mirage.__version__})

    async def _tags(self, request: web.Request) -> web.Response:
        told = await self._loaded()
        return web.json_response(
            listings.tags(self._rows, told, self._created, self._opens(request))
        )

    async def _ps(self, request: web.Request) -> web.Response:
        told, now = await self._loaded(), datetime.now(UTC)
        return web.json_response(
            listings.running_models(self._rows, told, now, self._opens(request))
        )

    async def _running(self, request: web.Request) -> web.Response:
        told = await self._loaded()
        return web.json_response(listings.running(self._rows, told, self._opens(request)))

    async def _loaded(self) -> Loaded:
        await renewed([self._source], PATIENCE_S)
        return self._source.answer or {}

    @property
    def _rows(self) -> list[RoutedRow]:
        return [one.row for one in self._tenants.served]

    def _opens(self, request: web.Request) -> Opens:
        return partial(self._gate.opens, request)
