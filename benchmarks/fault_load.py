"""A steady load of short requests and long streams on a server, and its answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any, NamedTuple

import aiohttp

REST_S = 0.1
"""Seconds between an answer and the next request of the same client."""
PATIENCE_S = 90.0
OK = "200"
DONE = b"data: [DONE]"


class Answer(NamedTuple):
    """Outcome of one short request or stream; times are seconds of the monotonic clock."""

    begun: float
    ended: float
    kind: str
    """`OK`, another HTTP status, ``cut`` or ``error event`` for a stream that ended early, or a
    word for the failure of the connection.
    """


class Asked(NamedTuple):
    """Bodies of the completion requests that clients send, the same for each tenant. `Load` adds
    the fields `model` and `stream`.
    """

    short: dict[str, Any]
    """Body of short requests."""
    stream: dict[str, Any]
    """Body of long streams."""


class Load:
    """Clients of each tenant, which send requests again and again from a call of `begin` on."""

    def __init__(self, url: str, tenants: list[str], asked: Asked, short: int, long: int) -> None:
        self._url, self._asked = url, asked
        self.answers: list[Answer] = []
        self.streams: list[Answer] = []
        self.running: Counter[str] = Counter()
        """Number of short requests (``_ask``) and of streams (``_stream``) that have not ended yet.
        """
        self._busy = asyncio.Event()
        clients = [(self._ask, short), (self._stream, long)]
        each = [(ask, name) for name in tenants for ask, number in clients for _ in range(number)]
        self._work = [asyncio.create_task(self._client(ask, name)) for ask, name in each]

    def begin(self) -> None:
        """Let the clients send requests from now on."""
        self._busy.set()

    async def end(self) -> None:
        """Send no more requests, and wait for the answers."""
        self._busy.clear()
        while self.running.total():
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """End all clients."""
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    async def _client(self, ask: Any, tenant: str) -> None:
        timeout = aiohttp.ClientTimeout(PATIENCE_S)
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            while True:
                await self._busy.wait()
                begun, kind = time.monotonic(), "cancelled"
                self.running[ask.__name__] += 1
                try:
                    kind = await ask(session, tenant)
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    kind = _named(error)
                finally:
                    self.running[ask.__name__] -= 1
                    told = self.answers if ask == self._ask else self.streams
                    told.append(Answer(begun, time.monotonic(), kind))
                await asyncio.sleep(REST_S)

    async def _ask(self, session: aiohttp.ClientSession, tenant: str) -> str:
        body = {"model": tenant, **self._asked.short}
        async with session.post(f"{self._url}/v1/completions", json=body) as answer:
            await answer.read()
            return str(answer.status)

    async def _stream(self, session: aiohttp.ClientSession, tenant: str) -> str:
        body = {"model": tenant, "stream": True, **self._asked.stream}
        async with session.post(f"{self._url}/v1/completions", json=body) as answer:
            last = b""
            async for line in answer.content:
                last = line.strip() or last
            if answer.status == 200 and last != DONE:
                return "error event" if b'"error"' in last else "cut"
            return str(answer.status)


def _named(error: BaseException) -> str:
    match error:
        case aiohttp.ClientConnectorError():
            return "refused"
        case TimeoutError():
            return f"nothing in {PATIENCE_S:g} s"
        case aiohttp.ClientError() | ConnectionError():
            return "cut"
    return type(error).__name__


async def health(url: str) -> str:
    """Status of the server by `/health`; another word if there is no answer in 2 s."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2.0)) as session,
            session.get(f"{url}/health") as answer,
        ):
            return str(json.loads(await answer.read())["status"])
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return _named(error)
