"""OpenAI's forms, as far as the router speaks them itself: errors, models, a request's model."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from mirage.serve.board import Backend

RETRY_AFTER_S = 5

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiError(Exception):
    """A request that is answered with an error of OpenAI's form."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code or self.status,
            }
        }

    def response(self) -> web.Response:
        busy = {"Retry-After": str(RETRY_AFTER_S)} if self.status == 503 else None
        return web.json_response(self.body(), status=self.status, headers=busy)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever goes wrong is answered in the same form."""
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except web.HTTPException as error:
        message = f"{request.method} {request.path}: {error.reason}"
        return ApiError(error.status, message).response()


def model_of(body: bytes) -> str:
    """The request's ``model``. Raises `ApiError`."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(400, f"the body is not a JSON object: {type(fields).__name__}")
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise ApiError(400, f"'model' must name a model, found {model!r}", param="model")
    return model


def model_card(backend: Backend, created: int) -> dict[str, Any]:
    """One entry of ``/v1/models``; `created` is in seconds since 1970."""
    return {
        "id": backend.name,
        "object": "model",
        "created": created,
        "owned_by": "mirage",
        "max_model_len": backend.max_model_len,
    }
