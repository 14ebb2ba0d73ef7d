"""An answer of the supervisor that all viewers share, however many there are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from mirage.serve.openai import ApiError

AGE_S = 1.0
"""Seconds for which an answer, or that there is none, is told again."""


class SharedAnswer:
    """Asks when somebody wants to know, once in `AGE_S` seconds at most."""

    def __init__(
        self, ask: Callable[[], Awaitable[bytes]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock = ask, clock
        self._asking = asyncio.Lock()
        self._until = 0.0
        self._told: bytes | ApiError = b""

    async def told(self) -> bytes:
        """The answer. Raises `ApiError`."""
        async with self._asking:
            if self._clock() >= self._until:
                try:
                    self._told = await self._ask()
                except ApiError as error:
                    self._told = error
                self._until = self._clock() + AGE_S
        if isinstance(self._told, ApiError):
            raise self._told.with_traceback(None)
        return self._told
