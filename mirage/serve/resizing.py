"""`POST /mirage/tiers`: other budgets for host memory and peers while everything runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from aiohttp import web
from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import from_json

from mirage.config import LARGEST_BYTES, Strict, parse_bytes
from mirage.problems import first_problem
from mirage.serve.near import why_far
from mirage.serve.openai import ApiError
from mirage.serve.registry import Registry

ROUTE = "/mirage/tiers"
JSON = "application/json"


Budget = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=LARGEST_BYTES)]


class Resize(Strict):
    """The body. What is left out stays as it is."""

    host: Budget | None = None
    peer: dict[str, Budget] = Field(default_factory=dict)
    """By the peer's name; 0 takes back all that it lent."""


class Resizing:
    """The route; `resize` does it and raises `ValueError` for what cannot be.

    `listening` is the name or address that the server was told to listen on.
    """

    def __init__(
        self,
        registry: Registry,
        resize: Callable[[Resize], Awaitable[None]],
        listening: str = "",
    ) -> None:
        self._registry, self._resize, self._listening = registry, resize, listening

    async def handle(self, request: web.Request) -> web.Response:
        """What the tiers hold, once it has begun; copies may still be under way."""
        try:
            self._check(request)
            await self._resize(await _wanted(request))
        except ApiError as error:
            return error.response()
        except ValueError as error:
            return ApiError(400, str(error)).response()
        return web.json_response(self._registry.tiers())

    def _check(self, request: web.Request) -> None:
        """Memory is this machine's affair. Raises `ApiError`.

        A page of another site can send text and forms without asking first, but no JSON.
        """
        if why := why_far(request.remote, request.headers, self._listening, request.version):
            raise ApiError(403, f"{ROUTE} is changed from this machine alone, and {why}")
        if request.content_type != JSON:
            raise ApiError(
                415, f"Content-Type is {request.content_type[:100]!r}: send {JSON}, and such a body"
            )


async def _wanted(request: web.Request) -> Resize:
    body = await request.read()
    try:
        return Resize.model_validate_json(body)
    except ValidationError as error:
        within = bool(error.errors()[0]["loc"])
        raw = from_json(body, allow_partial=True) if within else None
        why = first_problem(error, raw)
        raise ApiError(400, why if within else f"the body: {why}") from None
