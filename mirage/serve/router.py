"""The OpenAI API of all tenants behind one address: requests go where ``model`` says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import aiohttp
from aiohttp import web
from aiohttp.hdrs import METH_ANY

from mirage.config import LARGEST_BODY, HttpSection
from mirage.control.roster.states import LifeState
from mirage.serve import history
from mirage.serve.access.bounds import ShapedBody, shaped
from mirage.serve.access.forms import NO_KEYS, AccessTable
from mirage.serve.access.gate import AccessGate, Passage
from mirage.serve.bodies import fingerprint, model_of, with_model
from mirage.serve.clients.body_budget import BodyRoom
from mirage.serve.clients.body_reader import read_body
from mirage.serve.clients.connection import ClientConnection, tells_connection
from mirage.serve.clients.front import ClientFront
from mirage.serve.closing import Closing, ends
from mirage.serve.cors import CrossOrigins
from mirage.serve.forward import Forward
from mirage.serve.metrics import CLIENT_LEFT, Metrics
from mirage.serve.near import why_far
from mirage.serve.openai import ApiError, errors_as_json, model_cards
from mirage.serve.openapi import OWN_PATH, openapi_text
from mirage.serve.registry import REACHABLE, Registry, TenantServer
from mirage.serve.resizing import ROUTE, Resize, Resizing
from mirage.serve.roster.attendance import Attendance
from mirage.serve.roster.ticket import NotInTime
from mirage.serve.routes import FORM_ROUTES, JSON_ROUTES, REFUSED_ROUTES, ROUTES
from mirage.serve.suspects import RequestFacts
from mirage.serve.unkept import check_unkept
from mirage.serve.unread import COUNTED, AnsweringRunner, identity
from mirage.units import KIB

MAX_BODY_BYTES = LARGEST_BODY
AT_ONCE_BYTES = 256 * KIB
"""Larger bodies are looked at beside the event loop, which also decides about memory."""
SHALLOW = 500
"""Bodies with more brackets are looked at there too. How deep they may nest depends on the stack
that the reader begins with, and should not depend on their length."""
SHUTDOWN_S = 1.0


Read = TypeVar("Read")


@dataclass
class CountedAs:
    """Tenant and status that one request is counted by."""

    tenant: str = ""
    status: int = 500
    """Status of a request that does not end as it should."""
    passage: Passage | None = None
    """None until it is within its limits."""


class RequestedAs(NamedTuple):
    """The model's name in a request, and the fingerprint of its body."""

    model: str
    mark: str


class Router:
    """An HTTP server in front of the backends on `registry`. `stop` ends what `start` began."""

    def __init__(
        self,
        registry: Registry,
        attendance: Attendance,
        resize: Callable[[Resize], Awaitable[None]] | None = None,
        access: AccessTable = NO_KEYS,
        http: HttpSection | None = None,
    ) -> None:
        """Requests wait at the `attendance` for tenants that are not awake.

        `resize` gives the tiers other budgets; there is no route for it without. `access` says who
        may ask for what, `http` how fast, how much and from where.
        """
        self._attendance = attendance
        self.registry = registry
        self._resize = resize
        self.metrics = Metrics(registry)
        self.gate = AccessGate(registry, self.metrics, access)
        http = http or HttpSection()
        self._front = ClientFront(http)
        self.metrics.add(self._front.metrics)
        self._cors = CrossOrigins(http.cors)
        self._created = int(time.time())
        self._host = ""
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._closing = Closing()
        self._runner: AnsweringRunner | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen; port 0 takes any free one. Returns the URL. Raises `OSError`."""
        app = web.Application(
            client_max_size=MAX_BODY_BYTES,
            middlewares=[tells_connection, self._cors.preflights, errors_as_json, self.gate.asks],
        )
        app.on_response_prepare.append(self._cors.tells)
        self._host = host
        app.add_routes(self.routes(host))
        self._runner = AnsweringRunner(
            app,
            lambda status: self.metrics.answered("", status),
            SHUTDOWN_S,
            partial(ClientConnection, self._front),
            keepalive_timeout=self._front.http.idle_s,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return _url(host, self._runner.addresses[0][1])

    def routes(self, host: str) -> list[web.RouteDef]:
        """All that is answered; `host` is listened on."""
        return [
            web.get("/live", self._live),
            web.get("/ready", self._ready),
            web.get("/health", self._health),
            web.get("/health/{model:.+}", self._health_of),
            web.get("/metrics", self._metrics),
            web.get("/mirage/state", self._state),
            web.get(history.ROUTE, self._timeline),
            *self._admin(host),
            web.get(OWN_PATH, self._openapi),
            web.get("/v1/models", self._models),
            web.get("/v1/models/{model:.+}", self._model),
            *(web.post(route, self._proxy) for route in (*JSON_ROUTES, *FORM_ROUTES)),
            *(web.route(METH_ANY, route, self._refuse) for route in REFUSED_ROUTES),
        ]

    def _admin(self, host: str) -> list[web.RouteDef]:
        """All that changes what the server does."""
        if self._resize is None:
            return []
        return [web.post(ROUTE, Resizing(self.registry, self._resize, host).handle)]

    async def drain(self) -> None:
        """Refuse what is new, and end what still runs after `SHUTDOWN_S`. Idempotent."""
        self._closing.begin()
        await self._closing.finished(SHUTDOWN_S)
        self._closing.break_off()
        await self._closing.finished(SHUTDOWN_S)  # unless a client does not read
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def stop(self) -> None:
        """Drain, and close the sockets. Idempotent."""
        await self.drain()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # -- the tenants' API ---------------------------------------------------------------

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        counted = CountedAs()
        try:
            with self._front.bodies.room() as room:
                return await self._answer(request, counted, room)
        except ApiError as error:
            response = error.response(request.path)
            if error.status == 408:  # the rest of the body may still come
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
        message = f"{route} is not served: {ROUTES[route].why}"
        self.metrics.refused(route, 404)
        self.gate.leaves(request, None, 404)
        return ApiError(404, message, code="route_not_served").response(request.path)

    async def _answer(
        self, request: web.Request, counted: CountedAs, room: BodyRoom
    ) -> web.StreamResponse:
        """Raises `ApiError`."""
        reading = read_body(request, self._front, room, MAX_BODY_BYTES)
        body = await self._closing.before(reading)
        asked = await _read(body, partial(_named, request, body))
        backend = self._known(request, asked.model)
        counted.tenant = backend.name
        made = await _read(body, partial(_made, request, body, backend, asked.model))
        del body  # else there are two of them
        room.is_now(len(made.body))
        if self._closing.begun:
            raise ends()
        passage = self.gate.enters(request, backend, asked.model, made)
        counted.passage = passage
        async with self._admitted(backend, request, asked.model):
            reason = backend.reason if self._near(request) else ""
            _check_reachable(backend, asked.model, reason)
            return await self._passed_on(request, made.body, backend, asked, counted, passage)

    @asynccontextmanager
    async def _admitted(
        self, backend: TenantServer, request: web.Request, model: str
    ) -> AsyncIterator[None]:
        """Context of a request whose tenant is awake. Raises `ApiError` if it cannot be in time."""
        if backend.name not in self._attendance.roster.members:  # it is refused: it has no engine
            yield
            return
        try:
            ticket = self._attendance.ask(backend.name)
            try:
                await self._closing.before(ticket.admitted())
                yield
            finally:
                ticket.over()
        except NotInTime as error:
            self._known(request, model)  # it may have been removed meanwhile
            why = (error.why or backend.reason) if self._near(request) else ""
            raise not_in_time(backend, model, error.wait_s, why) from None

    async def _passed_on(
        self,
        request: web.Request,
        body: bytes,
        backend: TenantServer,
        asked: RequestedAs,
        counted: CountedAs,
        passage: Passage,
    ) -> web.StreamResponse:
        key = self.gate.key_name(request)
        named = identity(request)
        told = RequestFacts(request.path, asked.model, asked.mark, len(body), named, key)
        await self._close_unused()
        session = self._session(backend)
        forward = Forward(
            backend, told, request, session, self._closing, passage, self._front.http.stream_quiet_s
        )
        response = await forward.send(body)
        counted.status = CLIENT_LEFT if forward.left else response.status
        return response

    def _known(self, request: web.Request, name: str) -> TenantServer:
        backend = self.registry.serving(name)
        if backend is not None and self.gate.opens(request, backend, name):
            return backend
        known = ", ".join(map(repr, self.gate.models(request))) or "none"
        message = f"no model {name!r} here: use one of {known}"
        raise ApiError(404, message, param="model", code="model_not_found")

    async def _close_unused(self) -> None:
        """Sessions of tenants that are there no more."""
        for name in self._sessions.keys() - self.registry.backends.keys():
            await self._sessions.pop(name).close()

    def _session(self, backend: TenantServer) -> aiohttp.ClientSession:
        if backend.name not in self._sessions:
            # One connection per request: the engine closes idle ones, and a request sent on
            # a connection that is just being closed could not be told from a failed one.
            connector = aiohttp.UnixConnector(str(backend.socket), limit=0, force_close=True)
            self._sessions[backend.name] = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),  # clients share the session
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        return self._sessions[backend.name]

    async def _models(self, request: web.Request) -> web.Response:
        cards = [
            card
            for backend in self.registry.served
            for card in model_cards(backend, self._created)
            if self.gate.opens(request, backend, card["id"])
        ]
        return web.json_response({"object": "list", "data": cards})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        cards = model_cards(self._known(request, name), self._created)
        return web.json_response(next(card for card in cards if card["id"] == name))

    def _near(self, request: web.Request) -> bool:
        """True if it may be told reasons, which are lines of logs and have paths in them."""
        far = why_far(request.remote, request.headers, self._host, request.version)
        return far is None or self.gate.is_admin(request)

    # -- the server's own ---------------------------------------------------------------

    async def _live(self, request: web.Request) -> web.Response:
        """200 as long as this process answers."""
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        """200 if a request may be served here."""
        well = self.registry.health()["status"] in ("ok", "degraded")
        ready = well and not self._closing.begun
        return web.json_response(
            {"status": "ok" if ready else "down"}, status=200 if ready else 503
        )

    async def _health(self, request: web.Request) -> web.Response:
        body = self.registry.health(reasons=self._near(request))
        if self._closing.begun:
            body["status"] = "stopping"
        serves = body["status"] in ("ok", "degraded")
        return web.json_response(body, status=200 if serves else 503)

    async def _health_of(self, request: web.Request) -> web.Response:
        """Health of one tenant: 503 unless it serves, or will when it is asked."""
        backend = self._known(request, request.match_info["model"])
        ready = backend.is_well
        body = {"status": backend.state.value}
        if backend.reason and self._near(request):
            body["reason"] = backend.reason
        return web.json_response(body, status=200 if ready else 503)

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.Response(body=openapi_text(), content_type="application/json")

    async def _metrics(self, request: web.Request) -> web.Response:
        body = self.metrics.render()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _state(self, request: web.Request) -> web.Response:
        return web.json_response(self.registry.state(reasons=self._near(request)))

    async def _timeline(self, request: web.Request) -> web.Response:
        return await history.answer(self.registry, request)


def not_in_time(backend: TenantServer, model: str, wait_s: float, why: str = "") -> ApiError:
    """Answer to a request for `model` that would wait too long, with the predicted time."""
    message = f"model {model!r} is {backend.state.value}"
    if why and backend.state is LifeState.FAILED:
        message += f": {why}"
    else:
        since = f" ({why})" if why else ""
        message += f", and cannot be awake in time{since}: try again later"
    return ApiError(503, message, param="model", code="model_not_in_time", wait_s=wait_s)


def _check_reachable(backend: TenantServer, model: str, reason: str) -> None:
    if backend.state not in REACHABLE:
        why = reason or "try again later"
        message = f"model {model!r} is {backend.state.value}: {why}"
        raise ApiError(503, message, param="model", wait_s=backend.wait_s(time.monotonic()))


async def _read(body: bytes, read: Callable[[], Read]) -> Read:
    """Result of `read`, which looks at a body. Raises `ApiError`."""
    beside = len(body) > AT_ONCE_BYTES or body.count(b"[") + body.count(b"{") > SHALLOW
    try:
        return await asyncio.to_thread(read) if beside else read()
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None


def _made(request: web.Request, body: bytes, backend: TenantServer, model: str) -> ShapedBody:
    """A body as an engine may be given it. Raises `ApiError`."""
    check_unkept(body, request.path)
    made = shaped(body, request.path, backend.bounds)
    if model not in backend.aliases:
        return made
    kind = request.headers.get("Content-Type", "")
    return made._replace(body=with_model(made.body, kind, backend.name))


def _named(request: web.Request, body: bytes) -> RequestedAs:
    kind = request.headers.get("Content-Type", "")
    model = model_of(body, kind)
    return RequestedAs(model, fingerprint(request.path, body, kind))


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
