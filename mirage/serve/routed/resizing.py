"""`POST /mirage/tiers`: other budgets for host memory and peers while the server runs."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import from_json

from mirage.config import LARGEST_BYTES, Strict, parse_bytes
from mirage.problems import first_problem
from mirage.serve.api.openai import ApiError
from mirage.serve.http.local_request import why_far

ROUTE = "/mirage/tiers"
JSON = "application/json"


Budget = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=LARGEST_BYTES)]


class Resize(Strict):
    """Body of a request that resizes tiers. A field that is left out stays as it is."""

    host: Budget | None = None
    peer: dict[str, Budget] = Field(default_factory=dict)
    """Most bytes that each peer lends from now on, by its name; with 0 the peer gets all back."""


def check_resizer(request: web.Request, listening: str) -> None:
    """Check that a request may resize tiers: it has to come from a program on this machine.

    Raises `ApiError`: 403 for a request from elsewhere, 415 for a body that is not JSON.
    `listening` is the host name or address that the server was told to listen on. JSON is required
    because a page of another site can send text and forms without a preflight request, but no JSON.
    """
    if why := why_far(request.remote, request.headers, listening, request.version):
        raise ApiError(403, f"{ROUTE} can be changed only from this machine, and {why}")
    if request.content_type != JSON:
        raise ApiError(
            415, f"Content-Type is {request.content_type[:100]!r}: send {JSON}, and such a body"
        )


def resize_in(body: bytes) -> Resize:
    """Budgets in a body. Raises `ApiError` (400) for a body of another form."""
    try:
        return Resize.model_validate_json(body)
    except ValidationError as error:
        within = bool(error.errors()[0]["loc"])
        raw = from_json(body, allow_partial=True) if within else None
        why = first_problem(error, raw)
        raise ApiError(400, why if within else f"the body: {why}") from None
