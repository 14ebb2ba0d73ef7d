"""A stand-in for `mirage serve`: answers as vLLM streams, and misbehaves when asked to.

As a script: ``fake_serve.py POLICY READY_FILE MODE [FIFO]``. Modes: ``answer``; ``refuse`` (cannot
start); ``deaf`` (ignores SIGINT and SIGTERM); ``die`` (ends at the first request after the
warm-up); ``stall`` (never answers a request after the warm-up, and writes a line to FIFO when the
first of them comes).
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from aiohttp import web

WARM_UP = "Hello"
FIELDS = (
    *("kv_blocks", "kv_used_blocks", "layers_remapped", "stream_slots", "running", "waiting"),
    *("held_bytes", "preemptions", "bytes_streamed", "stall_s"),
)


class Fake:
    """State of the fake server: the request bodies that it got, and a clock that advances each time
    it is read.
    """

    def __init__(self, policy: str = "static", mode: str = "answer", fifo: str = "") -> None:
        self.policy = policy
        self.mode = mode
        self.fifo = fifo
        self.bodies: list[dict] = []
        self.left = asyncio.Event()
        """Set when a client has gone away whose answer stalls."""
        self.samples: list[dict] = []
        self.page: int | None = None
        """Samples of a page of its timeline; None for an older server, which sends its whole
        timeline at once.
        """
        self.asked_since: list[str | None] = []
        self.keys: set[str | None] = set()
        self.at_once = self.most_at_once = 0

    def app(self, with_timeline: bool = True) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self.completions)
        if with_timeline:
            app.router.add_get("/mirage/state", self.state)
            app.router.add_get("/mirage/timeline", self.timeline)
        return app

    async def completions(self, request: web.Request) -> web.StreamResponse:
        self.keys.add(request.headers.get("Authorization"))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self.completion(request)
        finally:
            self.at_once -= 1

    async def completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.sample()
        model = body["model"]
        if model == "missing":
            error = {"message": "The model `missing` does not exist.", "code": 404}
            return web.json_response({"error": error}, status=404)
        if model == "crashing":
            return web.Response(status=502, text="Bad\n gateway")
        if body["prompt"] != WARM_UP and self.mode == "die":
            os._exit(1)
        while model == "together" and self.most_at_once < 3:
            await asyncio.sleep(0.01)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if model == "stalling" or (self.mode == "stall" and body["prompt"] != WARM_UP):
            await self.stall(request, response)
        await self.stream(request, response, body)
        return response

    async def stream(self, request: web.Request, response: web.StreamResponse, body: dict) -> None:
        """Stream the answer: token i is character i of the prompt, shifted by one. Some models
        break off, end early or report an error.
        """
        for number in range(body["max_tokens"]):
            if number == 1 and body["model"] == "breaking":
                request.transport.abort()
                return
            if number == 1 and body["model"] == "ending":
                return
            if number == 1 and body["model"] == "erring":
                await send(response, {"error": {"message": "EngineCore died"}})
                await response.write(b"data: [DONE]\n\n")
                return
            value = ord(body["prompt"][number % len(body["prompt"])])
            choice = {"index": 0, "text": chr(value + 1), "token_ids": [value + 1]}
            await send(response, {"choices": [choice]})
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        await send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")

    async def stall(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send only a comment until the client has gone."""
        await response.write(b": nothing yet\n\n")
        if self.fifo:
            Path(self.fifo).write_text("stalled\n")
            self.fifo = ""
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()

    def sample(self) -> dict:
        done = len(self.bodies)
        tenant = dict.fromkeys(FIELDS, 0) | {
            "kv_blocks": 10 + done,
            "preemptions": done,
            "layers_remapped": 2,
        }
        self.samples.append({"t": float(len(self.samples)), "tenants": {"a": tenant, "b": tenant}})
        return self.samples[-1]

    async def state(self, request: web.Request) -> web.Response:
        return web.json_response({**self.sample(), "policy": self.policy})

    async def timeline(self, request: web.Request) -> web.Response:
        shape = {"layers": 12, "layer_bytes": 1, "extent_bytes": 1, "extent_blocks": 1}
        body = {
            "schema_version": 3,
            "samples": self.samples,
            "device_bytes": 1000,
            "tenants": {"a": shape, "b": shape},
        }
        if self.page is not None:
            body |= self.paged(request.query.get("since"))
        return web.json_response(body)

    def paged(self, since: str | None) -> dict:
        self.asked_since.append(since)
        later = [s for s in self.samples if since is None or s["t"] > float(since)]
        some = later[: self.page]
        more = len(later) > len(some)
        return {
            "samples": some,
            "next_since": some[-1]["t"] if more else None,
        }


async def send(response: web.StreamResponse, body: dict) -> None:
    await response.write(b"data: " + json.dumps(body).encode() + b"\n\n")


async def serve(policy: str, ready_file: str, mode: str, fifo: str = "") -> None:
    if mode == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    runner = web.AppRunner(Fake(policy, mode, fifo).app(), handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1)
    await site.start()
    port = runner.addresses[0][1]
    Path(ready_file).write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "pid": os.getpid()}))
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    if sys.argv[3] == "refuse":
        print("loading")
        print("mirage: error: model a does not fit: lower its share", file=sys.stderr)
        print("and more at the end")
        sys.exit(2)
    # A shell that starts the tests in the background has it ignored; the real server listens.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(serve(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(0)
