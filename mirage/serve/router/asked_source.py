"""A server that is asked for metrics when somebody wants them, and waited for while it is quick.

Its last answer holds meanwhile. One that was late is waited for no more until it has answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

import aiohttp

FRESH_S = 1.0
"""Seconds for which an answer is new enough: nobody is asked more often."""
LIMIT_S = 5.0
"""Seconds after which an answer is not awaited any more, and the last one is dropped."""

T = TypeVar("T")


class AskedSource(Generic[T]):
    """Metrics of one server. Call `close` at the end."""

    def __init__(
        self, ask: Callable[[], Awaitable[T]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`ask` raises `aiohttp.ClientError`, `OSError` or `ValueError` if there is no answer."""
        self._ask, self._clock = ask, clock
        self.answer: T | None = None
        """Last answer; None after a failure."""
        self.late = False
        """True from when it was waited for in vain until it answers."""
        self._asked = self._answered = -FRESH_S
        self._asking: asyncio.Task[None] | None = None

    @property
    def age_s(self) -> float:
        """Seconds since it gave its last answer."""
        return self._clock() - self._answered

    def begin(self) -> asyncio.Task[None] | None:
        """Ask, if the answer is not fresh; what is to be waited for, if anything is."""
        if self._asking is None or self._asking.done():
            if self._clock() < self._asked + FRESH_S:
                return None
            self._asked = self._clock()
            self._asking = asyncio.create_task(self._asks())
        return None if self.late else self._asking

    def waited(self) -> None:
        """The server was waited for, long enough."""
        if self._asking is not None and not self._asking.done():
            self.late = True

    def close(self) -> None:
        """Idempotent."""
        if self._asking is not None:
            self._asking.cancel()

    async def _asks(self) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                self.answer = await self._ask()
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            self.answer = None
        else:
            self._answered, self.late = self._clock(), False


async def renewed(sources: Iterable[AskedSource[Any]], patience_s: float) -> None:
    """Return when all have answered that are not late, after `patience_s` seconds at most."""
    begun = [(source, task) for source in sources if (task := source.begin()) is not None]
    if begun:
        await asyncio.wait([task for _, task in begun], timeout=patience_s)
        for source, _ in begun:
            source.waited()
