"""Access log: a line of JSON for each request that has ended, answered or left by its client, with
its client and result.

Lines contain nothing of a body, no header but the request's id, and no path: they name the route as
it is registered, so that text which a client puts into a path or query stays out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from mirage.serve.api.openai import Handler
from mirage.serve.http.error_answers import identity
from mirage.serve.logs.logs import FIELDS, JsonLine, ReopenedFile
from mirage.serve.router.counted_as import COUNTED_AS
from mirage.serve.router.gate import KEY, Passage
from mirage.serve.router.metrics import CLIENT_LEFT


class AccessLog:
    """Access log of one router, in a file that log rotation may move away."""

    def __init__(self, file: Path) -> None:
        self._log = logging.Logger("mirage.access")
        handler = ReopenedFile(file)
        handler.setFormatter(JsonLine())
        self._log.addHandler(handler)

    @web.middleware
    async def notes(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware: have the request answered, and write its line when the answer has ended."""
        begun, status, size = time.monotonic(), 500, 0
        try:
            response = await handler(request)
            status, size = response.status, response.body_length or response.content_length or 0
            return response
        except (asyncio.CancelledError, ConnectionError):
            status = CLIENT_LEFT
            raise
        finally:
            took = time.monotonic() - begun
            self._log.info("", extra={FIELDS: _fields(request, status, size, took)})


def _fields(request: web.Request, status: int, size: int, took_s: float) -> dict[str, Any]:
    resource, key = request.match_info.route.resource, request.get(KEY)
    counted = request.get(COUNTED_AS)
    told: dict[str, Any] = {
        "id": identity(request),
        "peer": request.remote,
        "method": request.method,
        "route": resource.canonical if resource is not None else "",
        "status": status if counted is None else counted.status,
        "seconds": round(took_s, 4),
        "bytes": size,
        "key": key.name if key is not None else "",
        "tenant": counted.tenant if counted is not None else "",
    }
    if counted is not None and counted.device:
        told["device"] = counted.device
    return told | (_passed(counted.passage) if counted is not None and counted.passage else {})


def _passed(passage: Passage) -> dict[str, Any]:
    usage = passage.usage
    told: dict[str, Any] = {"model": passage.model}
    if usage.known:
        told |= {"prompt_tokens": usage.prompt, "completion_tokens": usage.completion}
    return told
