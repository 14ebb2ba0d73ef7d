"""A server with known times, for the comparison of clients.

The first token of each request comes after `FIRST_S`, and each further one `GAP_S` later, whatever
else is requested. It computes nothing, so that differences between clients are those of the
clients, not of the processor time that they leave to the server.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from time import perf_counter

from aiohttp import web
from answering import DONE, answering, event, streamed

FIRST_S, GAP_S = 0.03, 0.01
ABOUT = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "paced"}


def paced(model: str) -> AbstractContextManager[str]:
    """Run the server in a process of its own while the block runs; yields its address."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": model, "root": model}]})

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    return answering(_stream, {"/v1/models": models, "/health": health})


async def _stream(request: web.Request) -> web.StreamResponse:
    """Stream as many tokens as are asked for; a prompt counts as many tokens as characters."""
    start = perf_counter()
    body = await request.json()
    response = await streamed(request)
    for number in range(body["max_tokens"]):
        await asyncio.sleep(start + FIRST_S + number * GAP_S - perf_counter())
        choice = {"index": 0, "text": "a", "logprobs": None, "finish_reason": None}
        await response.write(event(**ABOUT, choices=[choice | {"token_ids": [97]}]))
    asked, given = len(body["prompt"]), body["max_tokens"]
    usage = {"prompt_tokens": asked, "completion_tokens": given, "total_tokens": asked + given}
    await response.write(event(**ABOUT, choices=[], usage=usage))
    await response.write(DONE)
    return response
