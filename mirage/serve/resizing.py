"""`POST /mirage/tiers`: other budgets for host memory and peers while everything runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Annotated

from aiohttp import web
from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import from_json

from mirage.config import LARGEST_BYTES, Strict, parse_bytes
from mirage.problems import first_problem
from mirage.serve.openai import ApiError
from mirage.serve.registry import Registry

ROUTE = "/mirage/tiers"


Budget = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=LARGEST_BYTES)]


class Resize(Strict):
    """The body. What is left out stays as it is."""

    host: Budget | None = None
    peer: dict[str, Budget] = Field(default_factory=dict)
    """By the peer's name; 0 takes back all that it lent."""


class Resizing:
    """The route; `resize` does it and raises `ValueError` for what cannot be."""

    def __init__(self, registry: Registry, resize: Callable[[Resize], Awaitable[None]]) -> None:
        self._registry, self._resize = registry, resize

    async def handle(self, request: web.Request) -> web.Response:
        """What the tiers hold, once it has begun; copies may still be under way."""
        try:
            _check_near(request)
            await self._resize(await _wanted(request))
        except ApiError as error:
            return error.response()
        except ValueError as error:
            return ApiError(400, str(error)).response()
        return web.json_response(self._registry.tiers())


def _check_near(request: web.Request) -> None:
    """Memory is this machine's affair. Raises `ApiError`."""
    try:
        near = ip_address((request.remote or "").split("%")[0])
    except ValueError:
        near = None
    mapped = getattr(near, "ipv4_mapped", None)
    if near is None or not (mapped or near).is_loopback:
        raise ApiError(403, f"{ROUTE} is changed from this machine alone: ask 127.0.0.1")


async def _wanted(request: web.Request) -> Resize:
    body = await request.read()
    try:
        return Resize.model_validate_json(body)
    except ValidationError as error:
        within = bool(error.errors()[0]["loc"])
        raw = from_json(body, allow_partial=True) if within else None
        why = first_problem(error, raw)
        raise ApiError(400, why if within else f"the body: {why}") from None
