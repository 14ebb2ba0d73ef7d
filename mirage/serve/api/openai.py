"""OpenAI's forms that the router uses in its own answers: errors and models.

Errors have Anthropic's form on Anthropic's routes, and Cohere's on those of its chat.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from math import ceil
from typing import Any

from aiohttp import web
from aiohttp.hdrs import METH_ANY

from mirage.control.routes.routing import RequestFate
from mirage.serve.api import anthropic
from mirage.serve.api.route_hint import LONGEST, advice

COHERE = "/cohere/"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiError(Exception):
    """Error that is the answer to a request, in OpenAI's form.

    `wait_s` is the number of seconds after which another attempt is worthwhile, for
    ``Retry-After``. `headers` are additional headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        wait_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.headers = dict(headers or {})
        self.status, self.message, self.param, self.code = status, message, param, code
        if wait_s is not None:
            self.headers["Retry-After"] = str(max(1, ceil(wait_s)))

    def body(self, path: str = "") -> dict[str, Any]:
        """JSON body of the error, in the form of the route at `path`: Anthropic's, Cohere's, else
        OpenAI's; by default OpenAI's."""
        if anthropic.speaks(path):
            return anthropic.error_body(self.status, self.message)
        if path.startswith(COHERE):
            return {"message": self.message}
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code or self.status,
            }
        }

    def response(self, path: str = "") -> web.Response:
        """Answer with this error, in the form of the route at `path`: Anthropic's, Cohere's, else
        OpenAI's; by default OpenAI's."""
        return web.json_response(self.body(path), status=self.status, headers=self.headers)

    def event(self, path: str = "") -> bytes:
        """Event with this error, which ends a stream; its data is the `body` for the route at
        `path`."""
        named = "event: error\n" if anthropic.speaks(path) else ""
        return f"{named}data: {json.dumps(self.body(path))}\n\n".encode()


class ReplicaCannot(ApiError):
    """Error over which a request may be sent to another replica, since the request cannot have
    ended an engine.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        wait_s: float | None = None,
        fate: RequestFate = RequestFate.TURNED_AWAY,
    ) -> None:
        """`fate` is the result at this replica, which says whether the request may go to another
        one; the other arguments are those of `ApiError`."""
        super().__init__(status, message, param=param, code=code, wait_s=wait_s)
        self.fate = fate


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: turn errors, also those of aiohttp, into answers in the form of the route."""
    try:
        return await handler(request)
    except ApiError as error:
        return error.response(request.path)
    except web.HTTPException as error:
        response = ApiError(error.status, _told(request, error)).response(request.path)
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        return response


def _told(request: web.Request, error: web.HTTPException) -> str:
    """Reason of aiohttp's error; for an unknown path or method with a route to use instead."""
    message = f"{request.method} {request.path[:LONGEST]}: {error.reason}"
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{message}: use {' or '.join(sorted(error.allowed_methods - {'HEAD'}))}"
    if isinstance(error, web.HTTPNotFound):
        routes = [
            (route.method, route.resource.canonical)
            for route in request.app.router.routes()
            if route.resource is not None and route.method != METH_ANY  # which is refused
        ]
        if words := advice(request.method, request.path, routes):
            return f"{message}: {words}"
    return message
