"""A server whose times are known: the first token of each request comes after `FIRST_S`, each
further one `GAP_S` later, whatever else is asked. It computes nothing, so that clients which
measure it can be compared by what they measure and not by what they leave of the machine.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from time import perf_counter

from aiohttp import web

FIRST_S, GAP_S = 0.03, 0.01


@contextmanager
def paced(model: str) -> Iterator[str]:
    """Its address, while it runs in a process of its own."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=_serve, args=(there, model), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        server.kill()
        server.join()


def _serve(pipe: Connection, model: str) -> None:
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": model, "root": model}]})

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", _stream)
        app.router.add_get("/v1/models", models)
        app.router.add_get("/health", health)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        pipe.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


async def _stream(request: web.Request) -> web.StreamResponse:
    """As many tokens as are asked for; a prompt has as many as characters."""
    start = perf_counter()
    body = await request.json()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(body["max_tokens"]):
        await asyncio.sleep(start + FIRST_S + number * GAP_S - perf_counter())
        choice = {"index": 0, "text": "a", "logprobs": None, "finish_reason": None}
        await _send(response, choices=[choice | {"token_ids": [97]}])
    asked, given = len(body["prompt"]), body["max_tokens"]
    usage = {"prompt_tokens": asked, "completion_tokens": given, "total_tokens": asked + given}
    await _send(response, choices=[], usage=usage)
    await response.write(b"data: [DONE]\n\n")
    return response


async def _send(response: web.StreamResponse, **what: object) -> None:
    event = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "paced"}
    await response.write(b"data: " + json.dumps(event | what).encode() + b"\n\n")
