"""The OpenAI API of all tenants behind one address: requests go where ``model`` says."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from aiohttp import web
from aiohttp.hdrs import METH_ANY

from mirage.config import LARGEST_BODY, HttpSection
from mirage.control.roster.states import LifeState
from mirage.serve.access.bounds import ShapedBody
from mirage.serve.access.forms import AccessTable
from mirage.serve.clients.body_budget import BodyRoom
from mirage.serve.clients.body_reader import arrived_body, read_body
from mirage.serve.clients.certificate import TlsCertificate
from mirage.serve.clients.connection import ClientConnection, head_refusal
from mirage.serve.clients.front import ClientFront
from mirage.serve.clients.tls_site import TlsSite
from mirage.serve.closing import DRAINING, Closing, ends
from mirage.serve.cors import CrossOrigins
from mirage.serve.ends.suspects import RequestFacts
from mirage.serve.openai import ApiError, Handler, ReplicaCannot, errors_as_json
from mirage.serve.roster.ticket import NotInTime
from mirage.serve.routed.table import REACHABLE, RoutedRow
from mirage.serve.routed.tenants import RoutedTenant
from mirage.serve.router.access_log import AccessLog
from mirage.serve.router.cards import cards_of
from mirage.serve.router.counted_as import COUNTED_AS, CountedAs
from mirage.serve.router.devices import RoutedDevices
from mirage.serve.router.engines import EnginesConnected
from mirage.serve.router.forward import Forward, suspect_refused
from mirage.serve.router.gate import AccessGate, Passage
from mirage.serve.router.link import SupervisorLink
from mirage.serve.router.metrics import CLIENT_LEFT, RouterMetrics
from mirage.serve.router.own import OwnRoutes
from mirage.serve.router.reading import RequestedAs, looked_at, made_for, named_in, renamed
from mirage.serve.router.ticket import RouterTicket
from mirage.serve.routes import FORM_ROUTES, JSON_ROUTES, REFUSED_ROUTES, why_refused
from mirage.serve.unread import COUNTED, AnsweringRunner, identity

MAX_BODY_BYTES = LARGEST_BODY
SHUTDOWN_S = 1.0


class Router:
    """An HTTP server in front of the engines of all tenants.

    Run `tenants.keep`; `stop` ends what `start` began.
    """

    def __init__(self, link: SupervisorLink, access: AccessLog | None = None) -> None:
        """`link` has connected; those to several devices are made of its welcome.

        Each request gets a line in `access`, if there is one.
        """
        self.tenants, self._access = RoutedDevices(link), access
        welcome = link.welcome
        self.metrics = RouterMetrics(self.tenants)
        self.gate = AccessGate(self.tenants, self.metrics)
        http = HttpSection.model_construct(**welcome.http)  # it has been checked
        tls = welcome.http["tls"]
        self._certificate = tls and TlsCertificate(Path(tls["certificate"]), Path(tls["key"]))
        self._front = ClientFront(http)
        self.metrics.add(self._front.metrics)
        self._cors = CrossOrigins(http.cors)
        self._created, self._host = welcome.created, welcome.host
        self._engines = EnginesConnected(self.tenants)
        self._closing = Closing()
        self._own = OwnRoutes(self.tenants, self.gate, self.metrics, self._closing, self._engines)
        self._runner: AnsweringRunner | None = None

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Answer who connects to these, which listen; with TLS once its certificate is read."""
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
        if self._front.http.cors:
            app.on_response_prepare.append(self._cors.tells)
        app.add_routes(self.routes())
        self._runner = AnsweringRunner(
            app,
            lambda status: self.metrics.answered("", status),
            SHUTDOWN_S,
            partial(ClientConnection, self._front),
            keepalive_timeout=self._front.http.idle_s,
        )
        await self._runner.setup()
        for one in sockets:
            await self._site(self._runner, one).start()

    def _site(self, runner: AnsweringRunner, one: socket.socket) -> web.BaseSite:
        if self._certificate is None:
            return web.SockSite(runner, one)
        return TlsSite(runner, one, self._front, self._certificate)

    def routes(self) -> list[web.RouteDef]:
        """All that is answered."""
        return [
            *self._own.routes(),
            web.get("/v1/models", self._models),
            web.get("/v1/models/{model:.+}", self._model),
            *(web.post(route, self._proxy) for route in (*JSON_ROUTES, *FORM_ROUTES)),
            *(web.route(METH_ANY, route, self._refuse) for route in REFUSED_ROUTES),
        ]

    def holds(self, keys: AccessTable) -> None:
        """Have other keys from now on."""
        self.gate.holds(keys)

    def renews(self) -> None:
        """Have the certificate for new connections as its files are now."""
        if self._certificate is not None:
            self._certificate.renew()

    async def drain(self) -> None:
        """Say so, then refuse what is new, then end what still runs. Idempotent.

        The section `http` says how long each takes.
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
        """Each request, before any route."""
        if (refused := head_refusal(request)) is not None:
            return refused
        if (preflight := self._cors.preflight(request)) is not None:
            return preflight
        self.gate.asks(request)
        return await handler(request)

    # -- the tenants' API ---------------------------------------------------------------

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        counted = request[COUNTED_AS] = CountedAs()
        try:
            with self._front.bodies.room() as room:
                return await self._answer(request, counted, room)
        except ApiError as error:
            response = error.response(request.path)
            if error.status == 408 or error.code == DRAINING:  # more of this body may come, or none
                response.force_close()
            counted.status = response.status
            return response
        except (asyncio.CancelledError, ConnectionError):
            counted.status = CLIENT_LEFT
            raise
        finally:
            request[COUNTED] = True
            self.metrics.answered(counted.tenant, counted.status)
            self.gate.leaves(request, counted.passage, counted.status)

    async def _refuse(self, request: web.Request) -> web.Response:
        """Say why a route of vLLM's is not served."""
        resource = request.match_info.route.resource
        assert resource is not None
        route = resource.canonical
        message = f"{route} is not served: {why_refused(route)}"
        self.metrics.refused(route, 404)
        self.gate.leaves(request, None, 404)
        return ApiError(404, message, code="route_not_served").response(request.path)

    async def _answer(
        self, request: web.Request, counted: CountedAs, room: BodyRoom
    ) -> web.StreamResponse:
        """Raises `ApiError`."""
        if (body := arrived_body(request, room, MAX_BODY_BYTES)) is None:
            reading = read_body(request, self._front, room, MAX_BODY_BYTES)
            body = await self._closing.before(reading)
        asked = await looked_at(body, partial(named_in, request, body))
        replicas = self._own.replicas(request, asked.model)
        row = replicas[0].row
        counted.tenant = row.name
        asked = asked._replace(known_as=row.known_as(asked.model))
        counts = self.gate.counts_tokens(request, row)
        made = await looked_at(body, partial(made_for, request, body, row, asked, counts))
        del body  # else there are two of them
        room.is_now(len(made.body))
        if self._closing.begun:
            raise ends()
        passage = self.gate.enters(request, replicas, asked.model, made)
        counted.passage = passage
        *others, last = _not_suspected(replicas, asked)
        for tenant in others:
            with suppress(ReplicaCannot):
                return await self._by(tenant, request, made, asked, counted, passage, others=True)
        return await self._by(last, request, made, asked, counted, passage)

    async def _by(
        self,
        tenant: RoutedTenant,
        request: web.Request,
        made: ShapedBody,
        asked: RequestedAs,
        counted: CountedAs,
        passage: Passage,
        *,
        others: bool = False,
    ) -> web.StreamResponse:
        """The answer of one tenant; `others` as in `Forward`. Raises `ApiError`."""
        passage.untold, counted.device = tenant.untold, tenant.device
        tenant.in_flight += 1
        try:
            ticket = await self._admitted(tenant, request, asked.model)
            try:
                self._check_reachable(tenant.row, asked.model, request)
                if (known_as := tenant.row.known_as(asked.model)) != asked.known_as:
                    asked = asked._replace(known_as=known_as)  # its engine has loaded it since
                    made = await looked_at(made.body, partial(renamed, request, made, asked))
                return await self._passed_on(
                    request, made.body, tenant, asked, counted, passage, others=others
                )
            finally:
                ticket.over()
        finally:
            tenant.in_flight -= 1

    async def _admitted(
        self, tenant: RoutedTenant, request: web.Request, model: str
    ) -> RouterTicket:
        """Ticket of a request that may pass. Raises `ApiError` if it cannot be in time."""
        try:
            ticket = self.tenants.ask(tenant)
            if ticket.waits:
                try:
                    await self._closing.before(ticket.admitted())
                    self._own.replicas(request, model)  # an adapter may not have been loaded
                except BaseException:
                    ticket.over()
                    raise
            return ticket
        except NotInTime as error:
            self._own.replicas(request, model)  # it may have been removed meanwhile
            why = (error.why or tenant.row.reason) if self._own.is_near(request) else ""
            raise not_in_time(tenant.row, model, error.wait_s, why) from None

    async def _passed_on(
        self,
        request: web.Request,
        body: bytes,
        tenant: RoutedTenant,
        asked: RequestedAs,
        counted: CountedAs,
        passage: Passage,
        *,
        others: bool,
    ) -> web.StreamResponse:
        key = self.gate.key_name(request)
        named = identity(request)
        told = RequestFacts(request.path, asked.model, asked.mark, len(body), named, key)
        quiet_s = self._front.http.stream_quiet_s
        engine = self._engines.to(tenant)
        forward = Forward(
            *(tenant, told, request, engine, self._closing, passage, asked.known_as, quiet_s),
            others=others,
        )
        response = await forward.send(body)
        counted.status = CLIENT_LEFT if forward.left else response.status
        return response

    def _check_reachable(self, row: RoutedRow, model: str, request: web.Request) -> None:
        if row.state not in REACHABLE:
            why = (row.reason if self._own.is_near(request) else "") or "try again later"
            message = f"model {model!r} is {row.state.value}: {why}"
            wait_s = row.wait_s(time.monotonic())
            raise ReplicaCannot(503, message, param="model", wait_s=wait_s)

    async def _models(self, request: web.Request) -> web.Response:
        cards = cards_of(_placed(self.tenants.served), self._created)
        rows = {name: one.row for one in self.tenants.served for name in one.row.names}
        may = [name for name in cards if self.gate.opens(request, rows[name], name)]
        return web.json_response({"object": "list", "data": [cards[name] for name in may]})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        cards = cards_of(_placed(self._own.replicas(request, name)), self._created)
        return web.json_response(cards[name])


def _placed(tenants: Sequence[RoutedTenant]) -> list[tuple[RoutedRow, str]]:
    return sorted(((one.row, one.device) for one in tenants), key=lambda placed: placed[1])


def _not_suspected(replicas: Sequence[RoutedTenant], asked: RequestedAs) -> Sequence[RoutedTenant]:
    """Replicas that may have a request: one that may have ended an engine goes to that one alone.

    Raises `ApiError` if that refuses it.
    """
    if len(replicas) == 1:
        return replicas
    now = time.monotonic()
    for one in replicas:
        if (refused := one.suspects.refuses(asked.mark, now)) is not None:
            raise suspect_refused(asked.model, refused)
    return [one for one in replicas if one.suspects.knows(asked.mark, now)][:1] or replicas


def not_in_time(row: RoutedRow, model: str, wait_s: float, why: str = "") -> ReplicaCannot:
    """Answer to a request for `model` that would wait too long, with the predicted time."""
    message = f"model {model!r} is {row.state.value}"
    if why and row.state is LifeState.FAILED:
        message += f": {why}"
    else:
        since = f" ({why})" if why else ""
        message += f", and cannot be awake in time{since}: try again later"
    return ReplicaCannot(503, message, param="model", code="model_not_in_time", wait_s=wait_s)
