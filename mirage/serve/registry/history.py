"""`GET /mirage/timeline`: samples of memory over time, page by page, encoded in a thread.

The event loop also decides about memory and sends engines signs of life, so it must not encode a
large answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from mirage.serve.api.openai import ApiError
from mirage.serve.registry.registry import Registry
from mirage.serve.registry.timeline import PAGE_SAMPLES

ROUTE = "/mirage/timeline"


class HistoryQuery(NamedTuple):
    """Query for the first `limit` samples after `since` seconds from when the server was ready;
    None is the beginning."""

    since: float | None = None
    limit: int = PAGE_SAMPLES


async def answer(registry: Registry, request: web.Request) -> web.Response:
    """Answer with the page that the query asks for. Raises `ApiError` for a bad query."""
    asked = asked_for(request.query)
    told = registry.history(*asked)
    return web.Response(
        body=await asyncio.to_thread(encoded, told), content_type="application/json"
    )


def encoded(told: dict[str, Any]) -> bytes:
    """Page of the history as JSON."""
    return msgspec.json.encode(told)


def asked_for(query: Mapping[str, str]) -> HistoryQuery:
    """Page that a query asks for. Raises `ApiError` for a bad `since` or `limit`."""
    return HistoryQuery(_since(query.get("since")), _limit(query.get("limit")))


def _since(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        since = float(text)
    except ValueError:
        since = float("nan")
    if not isfinite(since):
        raise ApiError(400, f"since={text!r}: give the seconds of a sample's t", param="since")
    return since


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE_SAMPLES
    try:
        limit = int(text)
    except ValueError:
        limit = 0
    if not 1 <= limit <= PAGE_SAMPLES:
        raise ApiError(400, f"limit={text!r}: give 1 to {PAGE_SAMPLES} samples", param="limit")
    return limit
