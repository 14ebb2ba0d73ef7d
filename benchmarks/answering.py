"""A server of a benchmark's own, which answers on the loopback address from another process."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
DONE = b"data: [DONE]\n\n"


@contextmanager
def answering(
    complete: Handler, get: Mapping[str, Handler] | None = None, core: int | None = None
) -> Iterator[str]:
    """The server's address, while it runs.

    `complete` answers completions, `get` other paths; it keeps to the `core`, if one is named.
    """
    here, there = multiprocessing.Pipe()
    handlers = dict(get or {})
    server = multiprocessing.Process(
        target=_serve, args=(there, complete, handlers, core), daemon=True
    )
    server.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        server.kill()
        server.join()


def event(**what: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(what).encode() + b"\n\n"


async def streamed(request: web.Request) -> web.StreamResponse:
    """The head of a stream, sent."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def _serve(
    pipe: Connection, complete: Handler, get: Mapping[str, Handler], core: int | None
) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        for path, handler in get.items():
            app.router.add_get(path, handler)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        pipe.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())
