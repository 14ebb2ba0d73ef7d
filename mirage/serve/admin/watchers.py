"""Clients that watch the tenants' states; each gets one JSON line for each change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from aiohttp import web

from mirage.serve.admin.forms import StateChange

MOST_BEHIND = 1000
"""Most lines that a client may be behind; a slower client's connection is ended."""


class Watchers:
    """Connections of the clients that watch changes of states."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[StateChange | None]] = set()

    def tell(self, changes: Iterable[StateChange]) -> None:
        """Send changes to all clients."""
        for change in changes:
            for queue in list(self._queues):
                self._put(queue, change)

    def end(self) -> None:
        """End all connections after the lines that were told before."""
        for queue in list(self._queues):
            self._put(queue, None)

    def _put(self, queue: asyncio.Queue[StateChange | None], line: StateChange | None) -> None:
        if queue.qsize() >= MOST_BEHIND:
            queue.get_nowait()
            line = None
        queue.put_nowait(line)
        if line is None:
            self._queues.discard(queue)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send a client all changes from now on, until it leaves or is ended."""
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        queue: asyncio.Queue[StateChange | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            while (change := await queue.get()) is not None:
                await response.write(msgspec.json.encode(change) + b"\n")
        finally:
            self._queues.discard(queue)
        return response
