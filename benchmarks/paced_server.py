"""A server whose times are known: the first token of each request comes after `FIRST_S`, each
further one `GAP_S` later, whatever else is asked. It computes nothing, so that clients which
measure it can be compared by what they measure and not by what they leave of the machine.
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
    """Its address, while it runs in a process of its own."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": model, "root": model}]})

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    return answering(_stream, {"/v1/models": models, "/health": health})


async def _stream(request: web.Request) -> web.StreamResponse:
    """As many tokens as are asked for; a prompt has as many as characters."""
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
