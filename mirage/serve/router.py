"""The OpenAI API of all tenants behind one address: requests go where ``model`` says."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from mirage.serve.board import Backend, Board, EngineState
from mirage.serve.metrics import Metrics
from mirage.serve.openai import ApiError, errors_as_json, model_card, model_of

MAX_BODY_BYTES = 64 * 2**20
SHUTDOWN_S = 1.0

HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
REWRITTEN = {"host", "content-length", "content-encoding", "expect"}
"""Request headers that describe the bytes as they came in, not as they go on."""


class _AnswerBroke(Exception):
    """The engine's side of a request failed after its answer had begun."""


class Router:
    """An HTTP server in front of the backends on `board`. `stop` ends what `start` began."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.metrics = Metrics(board)
        self._created = int(time.time())
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen; port 0 takes any free one. Returns the URL. Raises `OSError`."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[errors_as_json])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/mirage/state", self._state),
                web.get("/mirage/timeline", self._timeline),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{model:.+}", self._model),
                web.post("/v1/completions", self._proxy),
                web.post("/v1/chat/completions", self._proxy),
            ]
        )
        # A client that goes away cancels its handler, and with it the engine's request.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_S
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return _url(host, self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop accepting, break off what still runs, close the sockets. Twice is once."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    # -- the tenants' API ---------------------------------------------------------------

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        tenant = ""
        try:
            body = await _body(request)
            backend = self._backend(model_of(body))
            tenant = backend.name
            response = await self._forward(request, backend, body)
        except ApiError as error:
            response = error.response()
        self.metrics.answered(tenant, response.status)
        return response

    async def _forward(
        self, request: web.Request, backend: Backend, body: bytes
    ) -> web.StreamResponse:
        headers = _kept(request.headers, HOP_BY_HOP | REWRITTEN)
        url = f"http://engine{request.path_qs}"
        try:
            async with self._session(backend).post(url, data=body, headers=headers) as answer:
                response = web.StreamResponse(
                    status=answer.status, headers=_kept(answer.headers, HOP_BY_HOP)
                )
                await response.prepare(request)
                await _pass_through(answer, response, request)
                return response
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(502, f"model {backend.name!r}: its engine broke off ({error})") from None

    def _backend(self, name: str) -> Backend:
        backend = self._known(name)
        if backend.state is not EngineState.READY:
            raise ApiError(
                503, f"model {name!r} is {backend.state.value}: try again later", param="model"
            )
        return backend

    def _known(self, name: str) -> Backend:
        if (backend := self.board.backends.get(name)) is not None:
            return backend
        known = ", ".join(repr(known) for known in self.board.backends)
        message = f"no model {name!r} here: use one of {known}"
        raise ApiError(404, message, param="model", code="model_not_found")

    def _session(self, backend: Backend) -> aiohttp.ClientSession:
        if backend.name not in self._sessions:
            # One connection per request: the engine closes idle ones, and a request sent on
            # a connection that is just being closed could not be told from a failed one.
            connector = aiohttp.UnixConnector(str(backend.socket), limit=0, force_close=True)
            self._sessions[backend.name] = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        return self._sessions[backend.name]

    async def _models(self, request: web.Request) -> web.Response:
        models = [model_card(backend, self._created) for backend in self.board.backends.values()]
        return web.json_response({"object": "list", "data": models})

    async def _model(self, request: web.Request) -> web.Response:
        backend = self._known(request.match_info["model"])
        return web.json_response(model_card(backend, self._created))

    # -- the server's own ---------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        states = {name: backend.state for name, backend in self.board.backends.items()}
        ready = sum(state is EngineState.READY for state in states.values())
        status = "ok" if ready == len(states) else "degraded" if ready else "down"
        body = {"status": status, "tenants": states}
        return web.json_response(body, status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        body = self.metrics.render()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _state(self, request: web.Request) -> web.Response:
        return web.json_response(self.board.state())

    async def _timeline(self, request: web.Request) -> web.Response:
        return web.json_response(self.board.history())


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.RequestPayloadError as error:
        raise ApiError(400, f"the body cannot be read: {error}") from None


async def _pass_through(
    answer: aiohttp.ClientResponse, response: web.StreamResponse, request: web.Request
) -> None:
    """Chunk by chunk as they come; a broken answer is never made to look complete."""
    with contextlib.suppress(ConnectionError):  # the client went away: nobody to tell
        try:
            while chunk := await _next_chunk(answer):
                await response.write(chunk)
        except _AnswerBroke as error:
            if answer.content_type == "text/event-stream":
                event = json.dumps(ApiError(502, f"the engine broke off ({error})").body())
                await response.write(f"data: {event}\n\n".encode())
            if request.transport is not None:
                request.transport.close()
        else:
            await response.write_eof()


async def _next_chunk(answer: aiohttp.ClientResponse) -> bytes:
    """Empty at the end. Raises `_AnswerBroke`."""
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise _AnswerBroke(error) from None


def _kept(headers: Mapping[str, str], dropped: set[str]) -> CIMultiDict[str]:
    pairs = ((name, value) for name, value in headers.items() if name.lower() not in dropped)
    return CIMultiDict(pairs)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
