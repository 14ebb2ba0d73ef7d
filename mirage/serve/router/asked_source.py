"""A server that is asked for metrics or an overview on demand, and waited for only while it answers
in time.

Until a new answer comes, the last one is used. A server that was late is not waited for again until
it has answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

import aiohttp

FRESH_S = 1.0
"""Least seconds between two questions to a server; a newer answer is fresh enough."""
LIMIT_S = 5.0
"""Seconds after which a question is given up, and the last answer is dropped."""

T = TypeVar("T")


class AskedSource(Generic[T]):
    """Last answer of one server, which is asked anew on demand. Call `close` at the end."""

    def __init__(
        self, ask: Callable[[], Awaitable[T]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`ask` fetches an answer; it raises `aiohttp.ClientError`, `OSError` or `ValueError` on
        failure.
        """
        self._ask, self._clock = ask, clock
        self.answer: T | None = None
        """Last answer; None before the first, and after a failure."""
        self.late = False
        """True from a wait that ended without an answer until the server answers."""
        self._asked = self._answered = -FRESH_S
        self._asking: asyncio.Task[None] | None = None

    @property
    def age_s(self) -> float:
        """Seconds since the server gave its last answer, by `clock`."""
        return self._clock() - self._answered

    def begin(self) -> asyncio.Task[None] | None:
        """Ask, unless the last question is newer than `FRESH_S`.

        Returns the task to wait for; None if there is none, or if the server is late.
        """
        if self._asking is None or self._asking.done():
            if self._clock() < self._asked + FRESH_S:
                return None
            self._asked = self._clock()
            self._asking = asyncio.create_task(self._asks())
        return None if self.late else self._asking

    def waited(self) -> None:
        """Note that the caller waits no longer for the present question to this server. If the
        question is still open, the server is `late` until it answers.
        """
        if self._asking is not None and not self._asking.done():
            self.late = True

    def close(self) -> None:
        """Give up a question that is still open. Idempotent."""
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
    """Ask all sources whose answers are not fresh, and wait for those that are not late.

    Returns when all of these have answered or failed, after `patience_s` seconds at most.
    """
    begun = [(source, task) for source in sources if (task := source.begin()) is not None]
    if begun:
        await asyncio.wait([task for _, task in begun], timeout=patience_s)
        for source, _ in begun:
            source.waited()
