"""A server of OpenAI's completions that refuses other fields, as some real servers do."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

OWN = {"model", "prompt", "max_tokens", "temperature", "stream"}
LENGTH = 3
"""Most words of an answer: it ends there, even if more tokens are asked for."""


class Strict:
    """Server that refuses the request fields in `refused`. With `names` the refusal names the
    field.
    """

    def __init__(self, refused: set[str], status: int = 400, names: bool = True) -> None:
        self.refused, self.status, self.names = refused, status, names
        self.bodies: list[dict[str, Any]] = []
        self.refusals = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self.completions)
        return app

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if minded := sorted(self.refused & body.keys()):
            self.refusals += 1
            what = f"Unrecognized request argument supplied: {minded[0]}" if self.names else "no"
            return web.json_response({"error": {"message": what}}, status=self.status)
        self.bodies.append(body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(min(LENGTH, body["max_tokens"])):
            text = f" {body['prompt'][:2]}{number}"
            await _send(response, {"choices": [{"index": 0, "text": text}], "usage": None})
        if "stream_options" in body:
            usage = {"prompt_tokens": 11, "completion_tokens": 2 * LENGTH}
            await _send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
