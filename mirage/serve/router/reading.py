"""Reading of a request's body: the model that it names, and the body that its engine is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from aiohttp import web

from mirage.serve.access.bounds import ShapedBody, shaped
from mirage.serve.api.openai import ApiError
from mirage.serve.api.stored_responses import check_unkept
from mirage.serve.http.bodies import body_digest, model_of, with_model
from mirage.serve.routed.table import RoutedRow
from mirage.units import KIB

AT_ONCE_BYTES = 256 * KIB
"""Bytes of a body beyond which it is read in a thread, not on the event loop."""
SHALLOW = 500
"""Number of opening brackets beyond which a body is read in a thread too. The depth that can be
read depends on the stack already used, and should not depend on the body's length.
"""

Read = TypeVar("Read")


class RequestedAs(NamedTuple):
    """Model's name in a request, and the digest of its body."""

    model: str
    mark: str
    known_as: str = ""
    """Name by which the tenant's engine knows the model; empty until the tenant is known."""


async def looked_at(body: bytes, read: Callable[[], Read]) -> Read:
    """Result of `read`, which looks at `body`, in a thread if that may take long. Raises `ApiError`
    for a body that is nested too deeply, and the errors of `read`.
    """
    beside = len(body) > AT_ONCE_BYTES or body.count(b"[") + body.count(b"{") > SHALLOW
    try:
        return await asyncio.to_thread(read) if beside else read()
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None


def made_for(
    request: web.Request, body: bytes, row: RoutedRow, asked: RequestedAs, counts: bool
) -> ShapedBody:
    """Body to send to the engine of `row`: checked, within the tenant's bounds, and with the
    engine's name of the model.

    With `counts` the output tokens that it allows are read from it. Raises `ApiError` for a body
    that exceeds the bounds, or that asks the server to keep an answer or to use a kept one.
    """
    check_unkept(body, request.path)
    made = shaped(body, request.path, row.bounds, counts=counts)
    return made if asked.known_as == asked.model else renamed(request, made, asked)


def renamed(request: web.Request, made: ShapedBody, asked: RequestedAs) -> ShapedBody:
    """Body with the model's name replaced by the engine's name of it."""
    kind = request.headers.get("Content-Type", "")
    return made._replace(body=with_model(made.body, kind, asked.known_as))


def named_in(request: web.Request, body: bytes) -> RequestedAs:
    kind = request.headers.get("Content-Type", "")
    model = model_of(body, kind)
    return RequestedAs(model, body_digest(request.path, body, kind))
