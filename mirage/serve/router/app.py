"""The OpenAI API of all tenants at one address: a request goes to the model that it names."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from mirage.config import HttpSection
from mirage.serve.access.forms import AccessTable
from mirage.serve.api.openai import Handler, errors_as_json
from mirage.serve.clients.certificate import TlsCertificate
from mirage.serve.clients.connection import ClientConnection, head_refusal
from mirage.serve.clients.front import ClientFront
from mirage.serve.clients.tls_site import TlsSite
from mirage.serve.http.cors import CrossOrigins
from mirage.serve.http.error_answers import AnsweringRunner
from mirage.serve.router.access_log import AccessLog
from mirage.serve.router.closing import Closing
from mirage.serve.router.devices import RoutedDevices
from mirage.serve.router.door import DeviceDoor
from mirage.serve.router.engines import EnginesConnected
from mirage.serve.router.gate import AccessGate
from mirage.serve.router.link import SupervisorLink
from mirage.serve.router.metrics import RouterMetrics
from mirage.serve.router.own import OwnRoutes
from mirage.serve.router.peer_silence import PeerSilence
from mirage.serve.router.replica_address import addressed, check_route
from mirage.serve.router.replica_metrics import ReplicaMetrics
from mirage.serve.router.sight import RequestSight
from mirage.serve.router.tenant_routes import MAX_BODY_BYTES, TenantRoutes

SHUTDOWN_S = 1.0


class Router:
    """HTTP server in front of the engines of all tenants.

    Run `tenants.keep` beside it; `stop` ends what `start` began.
    """

    def __init__(self, link: SupervisorLink, access: AccessLog | None = None) -> None:
        """`link` is connected; the lines to several devices are made from its welcome message.

        Each request gets a line in `access`, unless that is None.
        """
        welcome = link.welcome
        http = HttpSection.model_construct(**welcome.http)  # it has been checked
        self._silence = PeerSilence(http.silent_s)
        self.tenants, self._access = RoutedDevices(link, self._silence), access
        self.metrics = RouterMetrics(self.tenants)
        self.gate = AccessGate(self.tenants, self.metrics)
        tls = welcome.http["tls"]
        self._certificate = tls and TlsCertificate(*_files(tls))
        self._front = ClientFront(http)
        self.metrics.add(self._front.metrics)
        if self.tenants.several:
            self.metrics.add(ReplicaMetrics(self.tenants))
        self._cors = CrossOrigins(http.cors)
        self._engines = EnginesConnected(self.tenants)
        self._closing = Closing()
        sight = RequestSight(self.tenants, self.gate)
        self._own = OwnRoutes(
            self.tenants, sight, self.gate, self.metrics, self._closing, self._engines
        )
        self._door = DeviceDoor(link, self.gate, self._silence)
        self._tenant_routes = TenantRoutes(
            self.tenants,
            sight,
            self.gate,
            self.metrics,
            self._front,
            self._closing,
            self._engines,
        )
        self._runner: AnsweringRunner | None = None

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Answer requests on these sockets, which listen already.

        With TLS the certificate is read first.
        """
        if self._certificate is not None:
            await self._certificate.read()
        app = web.Application(
            client_max_size=MAX_BODY_BYTES,
            middlewares=[
                *([] if self._access is None else [self._access.notes]),
                errors_as_json,
                self._enters,
            ],
        )
        app.on_response_prepare.append(self._cors.tells)
        app.add_routes(self.routes())
        self._runner = AnsweringRunner(
            app,
            lambda status: self.metrics.answered("", status),
            SHUTDOWN_S,
            partial(ClientConnection, self._front),
            addressed,
        )
        await self._runner.setup()
        for one in sockets:
            await self._site(self._runner, one).start()

    def _site(self, runner: AnsweringRunner, one: socket.socket) -> web.BaseSite:
        if self._certificate is None:
            return web.SockSite(runner, one)
        return TlsSite(runner, one, self._front, self._certificate)

    def routes(self) -> list[web.RouteDef]:
        """All routes of the router."""
        return [*self._own.routes(), *self._tenant_routes.routes(), *self._door.routes()]

    def holds(self, keys: AccessTable) -> None:
        """Replace the table of keys for requests from now on."""
        self.gate.holds(keys)

    def opens(self, doors: dict[str, str]) -> None:
        """Replace the URLs of doors; `doors` maps a device's name to its URL."""
        self.tenants.opens(doors)

    def limits(self, http: dict[str, Any]) -> None:
        """Use the limits of this section `http` from now on, also for running requests.

        `http.idle_s` holds for new connections only. TLS is neither begun nor ended.
        """
        section = HttpSection.model_construct(**http)  # it has been checked
        self._front.becomes(section)
        self._cors.becomes(section.cors)
        self._silence.becomes(section.silent_s)
        if self._certificate is not None and http["tls"] is not None:
            self._certificate.moves(*_files(http["tls"]))

    def renews(self) -> None:
        """Read the certificate's files again, for new connections. Without TLS nothing happens."""
        if self._certificate is not None:
            self._certificate.renew()

    async def drain(self) -> None:
        """Announce the end, refuse new requests, and break off running ones that do not finish in
        time. Idempotent.

        `http.drain_delay_s` is the time between the announcement and the refusals, `http.drain_s`
        the time in which running requests may finish.
        """
        http = self._front.http
        if not self._closing.announced:
            self._closing.announced = True
            await asyncio.sleep(http.drain_delay_s)
        self._closing.begin()
        await self._closing.finished(http.drain_s)
        await self._break_off()

    async def _break_off(self) -> None:
        self._closing.begin()
        self._closing.break_off()
        await self._closing.finished(SHUTDOWN_S)  # unless a client does not read
        self._engines.close()

    async def stop(self) -> None:
        """End what runs, and close the sockets. Idempotent."""
        await self._break_off()
        self._own.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _enters(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware: checks of the head, CORS, the route and the key, before any route handles the
        request.
        """
        if (refused := head_refusal(request)) is not None:
            return refused
        if (preflight := self._cors.preflight(request)) is not None:
            return preflight
        check_route(request)
        self.gate.asks(request)
        return await handler(request)


def _files(tls: dict[str, Any]) -> tuple[Path, Path]:
    """Files of a certificate and its key."""
    return Path(tls["certificate"]), Path(tls["key"])
