"""HTTP server in a process of its own on the loopback address, for benchmarks of clients."""

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
    """Run a server on the loopback address while the block runs; gives its address. `complete`
    answers completions, `get` other paths. The server stays on the processor core `core`, if one is
    named.
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
    """Bytes of one event of a stream, whose data is `what` as JSON."""
    return b"data: " + json.dumps(what).encode() + b"\n\n"


async def streamed(request: web.Request) -> web.StreamResponse:
    """Send the head of a stream, and return the stream."""
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
