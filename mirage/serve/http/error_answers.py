"""Answers to requests that are too large or not HTTP, and to errors of handlers.

aiohttp would answer such a request with text that repeats its bytes, and log a traceback with them,
such as the beginning of a long Authorization header. Here no bytes of a request are repeated.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from mirage.serve.api.openai import ApiError
from mirage.serve.http.request_id import HEADER, id_of
from mirage.serve.logs.repeated import Repeated

log = logging.getLogger(__name__)

LONGEST_FIELD = 8190
"""Most bytes of a header, its name with its value."""
LONGEST_TARGET = 8192
"""Most bytes of a path with its query. It differs from the limit of headers because aiohttp's error
has only the limit to tell which of the two was too long.
"""
MOST_HEADERS = 128
NAME = "mirage"
COUNTED = web.RequestKey("mirage_counted", bool)
"""Key under which a request notes that its handler has counted it."""
ID = web.RequestKey("mirage_id", str)
"""Key under which a request carries its id."""
FRAMES = 3
"""Number of innermost frames of an error that are logged."""


def refusal(error: BaseException | None, status: int) -> ApiError:
    """Error to answer with, if aiohttp raised `error` over a request and would answer `status`.
    Pure.
    """
    if isinstance(error, LineTooLong):
        if error.args[1] == LONGEST_TARGET:
            message = f"the path with its query is longer than {LONGEST_TARGET} bytes: send less"
            return ApiError(414, message)
        return ApiError(431, f"a header is longer than {LONGEST_FIELD} bytes: send less")
    if isinstance(error, HttpProcessingError):
        if "Too many headers" in error.message:
            return ApiError(431, f"there are more than {MOST_HEADERS} headers: send fewer")
        return ApiError(400, "this cannot be read as a request of HTTP/1.1")
    return ApiError(status, f"{HTTPStatus(status).phrase}: an error of the server, see its log")


def place(error: BaseException) -> str:
    """Place of an error in one line, without its message, which may repeat parts of a request."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    where = " < ".join(f"{f.filename}:{f.lineno} {f.name}" for f in reversed(frames))
    return f"{type(error).__name__} at {where or 'an unknown place'}"


def identity(request: web.BaseRequest) -> str:
    """Id of a request: the client's if it has only harmless characters, else a new one."""
    if (known := request.get(ID)) is None:
        known = request[ID] = id_of(request.headers.get(HEADER))
    return known


def _sign(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Set the headers Server, in place of aiohttp's or uvicorn's with its version, and
    X-Request-Id.
    """
    response.headers["Server"] = NAME
    response.headers[HEADER] = identity(request)


async def _signs(request: web.Request, response: web.StreamResponse) -> None:
    _sign(request, response)


class Protocol(web.RequestHandler):
    """Connection of a client. `answered` of the runner gets each status that no handler chose."""

    __slots__ = ("_answered", "_faults", "_refused")

    def __init__(self, manager: web.Server, runner: AnsweringRunner, **options: Any) -> None:
        super().__init__(manager, **options)
        self._answered = runner.answered
        self._refused, self._faults = runner.refused, runner.faults

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that failed with an error in OpenAI's form: that of the exception `exc`,
        or of `status` if there is none. Raises `ConnectionError` if an answer has begun
        already."""
        answer = refusal(exc, status)
        if answer.status >= 500:
            self._faults.note(place(exc) if exc else f"an answer of {status}")
        else:
            self._refused.note(f"{answer.status} to {request.remote}")
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun: nothing else can be said")
        if not request.get(COUNTED):
            self._answered(answer.status)
        response = answer.response()
        _sign(request, response)
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Replace an answer that aiohttp makes without a handler, such as for an unknown `Expect`
        header, which it would repeat. Returns the answer, and True if the client
        disconnected early.
        """
        if isinstance(resp, web.HTTPException):
            self._answered(resp.status)
            resp = ApiError(
                resp.status, f"{request.method} {request.path}: {resp.reason}"
            ).response()
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log the place of an error, at most one line a second, instead of aiohttp's traceback."""
        error = kw.get("exc_info")
        self._faults.note(place(error) if isinstance(error, BaseException) else "no answer")


class AnsweringRunner(web.AppRunner):
    """Runner of an aiohttp application. `answered` gets each status that none of its handlers
    chose."""

    __slots__ = ("_connection", "_makes", "_options", "answered", "faults", "refused")

    def __init__(
        self,
        app: web.Application,
        answered: Callable[[int], None],
        shutdown_timeout: float,
        connection: Callable[..., Protocol] = Protocol,
        makes: Callable[..., web.BaseRequest] | None = None,
        **options: Any,
    ) -> None:
        """`connection` creates a connection's protocol; `options` are further ones of aiohttp for
        it.

        `makes` creates each request, from a factory of aiohttp's and its arguments; None uses the
        factory.
        """
        # A client that goes away cancels its handler, and with it the engine's request.
        super().__init__(app, handler_cancellation=True, shutdown_timeout=shutdown_timeout)
        app.on_response_prepare.append(_signs)
        later = asyncio.get_running_loop().call_later
        self.answered, self._connection, self._makes = answered, connection, makes
        self.refused = Repeated(
            partial(log.warning, "requests that could not be read: %d, last answered %s"), later
        )
        self.faults = Repeated(partial(log.error, "internal errors: %d, last: %s"), later)
        self._options = {
            "access_log": None,
            "auto_decompress": False,  # it would block the event loop: half a MB may be half a GB
            "max_line_size": LONGEST_TARGET,
            "max_field_size": LONGEST_FIELD,
            "max_headers": MOST_HEADERS,
            **options,
        }

    async def setup(self) -> None:
        """Create the server. Raises errors of the application's start."""
        await super().setup()
        if self._makes is not None and (manager := super().server) is not None:
            manager.request_factory = partial(self._makes, manager.request_factory)

    @property
    def server(self) -> Any:
        """Function that creates a protocol for each connection; None before `setup`."""
        if (manager := super().server) is None:
            return None
        loop = asyncio.get_running_loop()
        return partial(self._connection, manager, self, loop=loop, **self._options)
