"""Reading of a request's body, within limits of time and room."""

from __future__ import annotations

import asyncio
from io import BytesIO

from aiohttp import web

from mirage.serve.api.openai import ApiError
from mirage.serve.clients.body_budget import BodyRoom
from mirage.serve.clients.front import ClientFront
from mirage.serve.clients.patience import body_until, late_body
from mirage.serve.http.unpack import most_unpacked, too_large, unpacked


async def read_body(request: web.Request, front: ClientFront, room: BodyRoom, most: int) -> bytes:
    """Whole body, decompressed, of at most `most` bytes. Raises `ApiError` if it is longer, too
    slow, incomplete or wrongly encoded, or if there is no room for it.

    Its bytes are taken from `room`, and stay taken.
    """
    body = await _received(request, front, room, most)
    if encoding := request.headers.get("Content-Encoding", ""):
        room.needs(len(body) + min(most, most_unpacked(len(body))))
        body = await asyncio.to_thread(unpacked, body, encoding, most)
        room.is_now(len(body))
    return body


def arrived_body(request: web.Request, room: BodyRoom, most: int) -> bytes | None:
    """Body as `read_body` returns it, if all of it has come and it is not compressed; else None.

    Raises `ApiError` if it is longer than `most` bytes, or if there is no room for it.
    """
    content = request.content
    if not content.is_eof() or content.exception() or "Content-Encoding" in request.headers:
        return None
    if content.total_bytes > most:
        raise too_large(most)
    room.needs(content.total_bytes)
    return content.read_nowait()


async def _received(request: web.Request, front: ClientFront, room: BodyRoom, most: int) -> bytes:
    announced = request.content_length or 0
    if announced > most:
        raise too_large(most)
    room.needs(announced)
    begun, body, read = asyncio.get_running_loop().time(), BytesIO(), 0
    try:
        async with asyncio.timeout(None) as scope:
            while not request.content.at_eof():
                scope.reschedule(body_until(begun, read, front.http))
                read += body.write(await request.content.readany())
                if read > most:
                    raise too_large(most)
                room.needs(read)
    except TimeoutError:
        if not scope.expired():  # the connection's, which is lost
            raise
        front.metrics.slow["body"] += 1
        raise ApiError(408, late_body(read, front.http)) from None
    except web.RequestPayloadError:
        raise ApiError(400, "the body ended early, or its chunks are wrong") from None
    return body.getvalue()  # the buffer itself: pieces to be joined would take as much again
