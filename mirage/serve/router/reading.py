"""A request's body looked at: which model it names, and what its engine may be given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from aiohttp import web

from mirage.serve.access.bounds import ShapedBody, shaped
from mirage.serve.bodies import fingerprint, model_of, with_model
from mirage.serve.openai import ApiError
from mirage.serve.routed.table import RoutedRow
from mirage.serve.unkept import check_unkept
from mirage.units import KIB

AT_ONCE_BYTES = 256 * KIB
"""Larger bodies are looked at beside the event loop."""
SHALLOW = 500
"""Bodies with more brackets are looked at there too. How deep they may nest depends on the stack
that the reader begins with, and should not depend on their length."""

Read = TypeVar("Read")


class RequestedAs(NamedTuple):
    """The model's name in a request, and the fingerprint of its body."""

    model: str
    mark: str
    known_as: str = ""
    """Name by which the tenant's engine knows the model, once a tenant is known."""


async def looked_at(body: bytes, read: Callable[[], Read]) -> Read:
    """Result of `read`, which looks at a body. Raises `ApiError`."""
    beside = len(body) > AT_ONCE_BYTES or body.count(b"[") + body.count(b"{") > SHALLOW
    try:
        return await asyncio.to_thread(read) if beside else read()
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None


def made_for(
    request: web.Request, body: bytes, row: RoutedRow, asked: RequestedAs, counts: bool
) -> ShapedBody:
    """A body as an engine may be given it; `counts` as in `shaped`. Raises `ApiError`."""
    check_unkept(body, request.path)
    made = shaped(body, request.path, row.bounds, counts=counts)
    return made if asked.known_as == asked.model else renamed(request, made, asked)


def renamed(request: web.Request, made: ShapedBody, asked: RequestedAs) -> ShapedBody:
    """A body with the engine's name of its model."""
    kind = request.headers.get("Content-Type", "")
    return made._replace(body=with_model(made.body, kind, asked.known_as))


def named_in(request: web.Request, body: bytes) -> RequestedAs:
    kind = request.headers.get("Content-Type", "")
    model = model_of(body, kind)
    return RequestedAs(model, fingerprint(request.path, body, kind))
