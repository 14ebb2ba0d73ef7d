"""Routes for the clients of Ollama and llama-swap that list models and those in memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

from aiohttp import web

import mirage
from mirage.serve.registry.loaded import summed
from mirage.serve.routed.table import RoutedRow
from mirage.serve.router import listings
from mirage.serve.router.asked_source import AskedSource, renewed
from mirage.serve.router.cards import Opens
from mirage.serve.router.devices import RoutedDevices
from mirage.serve.router.gate import AccessGate
from mirage.serve.router.inner import InnerClient
from mirage.serve.router.listings import Loaded

PATIENCE_S = 1.0
"""Seconds to wait for the supervisors; after that the sizes that they told last are used."""


class ListedRoutes:
    """Routes that only read; a key sees only tenants that it may use. Call `close` at the end."""

    def __init__(
        self, tenants: RoutedDevices, gate: AccessGate, inners: Mapping[str, InnerClient]
    ) -> None:
        self._tenants, self._gate = tenants, gate
        self._created = tenants.first.welcome.created
        self._sources = [AskedSource(inner.loaded) for inner in inners.values()]

    def routes(self) -> list[web.RouteDef]:
        """All routes of this class."""
        return [
            web.get("/api/version", self._version),
            web.get("/api/tags", self._tags),
            web.get("/api/ps", self._ps),
            web.get("/running", self._running),
        ]

    def close(self) -> None:
        """Stop asking supervisors. Idempotent."""
        for source in self._sources:
            source.close()

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
        await renewed(self._sources, PATIENCE_S)
        return summed(one.answer for one in self._sources if one.answer is not None)

    @property
    def _rows(self) -> list[RoutedRow]:
        """Row of each tenant; of replicas, the row of the one that serves soonest."""
        names = dict.fromkeys(one.name for one in self._tenants.served)
        return [self._tenants.serving(name)[0].row for name in names]

    def _opens(self, request: web.Request) -> Opens:
        return partial(self._gate.opens, request)
