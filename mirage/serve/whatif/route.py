"""Route `GET /requests`: lengths and times of the last hour's requests, page by page.

Pages are encoded in a thread, since the event loop also decides about memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import msgspec
from aiohttp import web

from mirage.serve.api.openai import ApiError
from mirage.serve.whatif.forms import PastRow, PastTold
from mirage.serve.whatif.past import PastPage, PastRequests, requests_in

ROUTE = "/requests"
PAGE_ROWS = 5_000


async def answer(past: PastRequests, request: web.Request) -> web.Response:
    """Answer with the first `limit` requests after number `since`, both as the query has them.

    Raises `ApiError` for values that are out of bounds.
    """
    since = _whole(request.query, "since", 0, 0, 2**62)
    limit = _whole(request.query, "limit", PAGE_ROWS, 1, PAGE_ROWS)
    now = time.monotonic()
    page, offset = past.page(since, limit, now), time.time() - now
    body = await asyncio.to_thread(encoded, page, offset)
    return web.Response(body=body, content_type="application/json")


def encoded(page: PastPage, offset: float) -> bytes:
    """A page as JSON; `offset` is the difference of seconds since 1970 and `time.monotonic`."""
    rows = [
        PastRow(
            tenant,
            one.arrival_s + offset,
            one.prompt,
            one.output,
            one.first_s if one.streamed else None,
            one.whole_s,
            one.counted,
        )
        for tenant, packed in page.parts
        for one in requests_in(packed)
    ]
    return msgspec.json.encode(PastTold(rows, page.next_since, page.last)) + b"\n"


def _whole(query: Mapping[str, str], name: str, usual: int, least: int, most: int) -> int:
    """Whole number of a query's key, `usual` if it is not given. Raises `ApiError` for
    any other value than `least` to `most`.
    """
    word = query.get(name)
    if word is None:
        return usual
    number = int(word) if word.isascii() and word.isdigit() and len(word) < 20 else -1
    if not least <= number <= most:
        raise ApiError(400, f"{name}={word[:40]!r}: give {least} to {most}", param=name)
    return number
