"""Routes of the tenants' API: the list of models, and requests passed on to a tenant."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from aiohttp import web
from aiohttp.hdrs import METH_ANY

from mirage.config import LARGEST_BODY
from mirage.serve.access.bounds import ShapedBody
from mirage.serve.api.openai import ApiError, ReplicaCannot
from mirage.serve.api.routes import FORM_ROUTES, JSON_ROUTES, REFUSED_ROUTES, why_refused
from mirage.serve.clients.body_budget import BodyRoom
from mirage.serve.clients.body_reader import arrived_body, read_body
from mirage.serve.clients.front import ClientFront
from mirage.serve.ends.suspects import RequestFacts
from mirage.serve.http.error_answers import COUNTED, identity
from mirage.serve.roster.ticket import NotInTime
from mirage.serve.routed.table import REACHABLE, RoutedRow
from mirage.serve.routed.tenants import RoutedTenant
from mirage.serve.router.affinity import affinity_of
from mirage.serve.router.cards import cards_of
from mirage.serve.router.closing import DRAINING, Closing, ends
from mirage.serve.router.counted_as import COUNTED_AS, CountedAs
from mirage.serve.router.devices import RoutedDevices
from mirage.serve.router.engines import EnginesConnected
from mirage.serve.router.forward import Forward, HasOthers, no_others
from mirage.serve.router.gate import AccessGate, Passage
from mirage.serve.router.metrics import CLIENT_LEFT, RouterMetrics
from mirage.serve.router.reading import RequestedAs, looked_at, made_for, named_in, renamed
from mirage.serve.router.refusals import not_in_time
from mirage.serve.router.replica_address import REPLICA
from mirage.serve.router.replica_route import ReplicaRoute
from mirage.serve.router.sight import RequestSight
from mirage.serve.router.ticket import RouterTicket

MAX_BODY_BYTES = LARGEST_BODY


class TenantRoutes:
    """Handler of requests for tenants, from their heads to their answers."""

    def __init__(
        self,
        tenants: RoutedDevices,
        sight: RequestSight,
        gate: AccessGate,
        metrics: RouterMetrics,
        front: ClientFront,
        closing: Closing,
        engines: EnginesConnected,
    ) -> None:
        self._tenants, self._sight, self._gate = tenants, sight, gate
        self._metrics, self._front, self._closing = metrics, front, closing
        self._engines, self._created = engines, tenants.first.welcome.created

    def routes(self) -> list[web.RouteDef]:
        """All routes of this class, including vLLM's routes that are always answered with 404."""
        return [
            web.get("/v1/models", self._models),
            web.get("/v1/models/{model:.+}", self._model),
            *(web.post(route, self._proxy) for route in (*JSON_ROUTES, *FORM_ROUTES)),
            *(web.route(METH_ANY, route, self._refuse) for route in REFUSED_ROUTES),
        ]

    async def _models(self, request: web.Request) -> web.Response:
        opens = partial(self._gate.opens, request)
        cards = cards_of(_placed(self._sight.served(request)), self._created, opens)
        return web.json_response({"object": "list", "data": list(cards.values())})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        opens = partial(self._gate.opens, request)
        cards = cards_of(_placed(self._sight.replicas(request, name)), self._created, opens)
        return web.json_response(cards[name])

    async def _refuse(self, request: web.Request) -> web.Response:
        """Answer that a route of vLLM is not served, with the reason."""
        resource = request.match_info.route.resource
        assert resource is not None
        route = resource.canonical
        message = f"{route} is not served: {why_refused(route)}"
        self._metrics.refused(route, 404)
        self._gate.leaves(request, None, 404)
        return ApiError(404, message, code="route_not_served").response(request.path)

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
            self._metrics.answered(counted.tenant, counted.status)
            self._gate.leaves(request, counted.passage, counted.status)

    async def _answer(
        self, request: web.Request, counted: CountedAs, room: BodyRoom
    ) -> web.StreamResponse:
        """Read the request, check it, and return the answer of a replica. Raises `ApiError` if the
        request is refused, or no replica can answer.
        """
        if (body := arrived_body(request, room, MAX_BODY_BYTES)) is None:
            reading = read_body(request, self._front, room, MAX_BODY_BYTES)
            body = await self._closing.before(reading)
        asked = await looked_at(body, partial(named_in, request, body))
        replicas = self._sight.replicas(request, asked.model)
        row = replicas[0].row
        counted.tenant = row.name
        asked = asked._replace(known_as=row.known_as(asked.model))
        counts = self._gate.counts_tokens(request, row)
        made = await looked_at(body, partial(made_for, request, body, row, asked, counts))
        del body  # else there are two of them
        room.is_now(len(made.body))
        if self._closing.begun:
            raise ends()
        everywhere = self._tenants.serving(asked.model) if REPLICA in request else replicas
        passage = self._gate.enters(request, everywhere or replicas, asked.model, made)
        counted.passage = passage
        sends = partial(self._by, request, made, asked, counted, passage)
        if len(replicas) == 1:
            return await sends(replicas[0], others=no_others)
        read = partial(affinity_of, request.headers, request.path, made.body)
        affinity = await looked_at(made.body, read)
        route = ReplicaRoute(self._tenants, replicas, asked.model, asked.mark, affinity)
        return await route.answer(sends)

    async def _by(
        self,
        request: web.Request,
        made: ShapedBody,
        asked: RequestedAs,
        counted: CountedAs,
        passage: Passage,
        tenant: RoutedTenant,
        *,
        others: HasOthers,
    ) -> web.StreamResponse:
        """Answer of one tenant. `others` is asked whether another replica may get the request, if
        this one does not take it. Raises `ApiError` if the tenant cannot answer."""
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
        """Ticket of a request, once it may pass. Raises `ApiError` if it cannot be served in
        time.
        """
        try:
            ticket = self._tenants.ask(tenant)
            if ticket.waits:
                try:
                    await self._closing.before(ticket.admitted())
                    self._sight.replicas(request, model)  # an adapter may not have been loaded
                except BaseException:
                    ticket.over()
                    raise
            return ticket
        except NotInTime as error:
            self._sight.replicas(request, model)  # it may have been removed meanwhile
            why = (error.why or tenant.row.reason) if self._sight.is_near(request) else ""
            raise not_in_time(tenant.row, model, error.wait_s, why) from None

    def _check_reachable(self, row: RoutedRow, model: str, request: web.Request) -> None:
        if row.state not in REACHABLE:
            why = (row.reason if self._sight.is_near(request) else "") or "try again later"
            message = f"model {model!r} is {row.state.value}: {why}"
            wait_s = row.wait_s(time.monotonic())
            raise ReplicaCannot(503, message, param="model", wait_s=wait_s)

    async def _passed_on(
        self,
        request: web.Request,
        body: bytes,
        tenant: RoutedTenant,
        asked: RequestedAs,
        counted: CountedAs,
        passage: Passage,
        *,
        others: HasOthers,
    ) -> web.StreamResponse:
        key = self._gate.key_name(request)
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


def _placed(tenants: Sequence[RoutedTenant]) -> list[tuple[RoutedRow, str]]:
    return sorted(((one.row, one.device) for one in tenants), key=lambda placed: placed[1])
