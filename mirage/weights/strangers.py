"""Connections to a server of weights that have not shown the secret: few, each for a short time."""

from __future__ import annotations

import asyncio

from aiohttp.web_protocol import RequestHandler

MOST, WAIT_S = 64, 10.0
"""Most connections that have not shown the secret, and the seconds in which each must show it."""


class Strangers:
    """Connections without the secret at one server. If there are too many, the oldest is closed."""

    def __init__(self, most: int = MOST, wait_s: float = WAIT_S) -> None:
        self._most, self._wait_s = most, wait_s
        self._there: dict[RequestHandler, asyncio.TimerHandle] = {}

    def come(self, one: RequestHandler) -> None:
        """Add a connection that was opened."""
        later = asyncio.get_running_loop().call_later
        self._there[one] = later(self._wait_s, self._close, one)
        if len(self._there) > self._most:
            self._close(next(iter(self._there)))

    def is_known(self, one: RequestHandler) -> None:
        """Remove a connection that has shown the secret. Idempotent."""
        if (timer := self._there.pop(one, None)) is not None:
            timer.cancel()

    def _close(self, one: RequestHandler) -> None:
        self.is_known(one)
        if one.transport is not None:
            one.transport.abort()
