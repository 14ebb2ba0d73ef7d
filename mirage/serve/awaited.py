"""Answers that one tenant's engine owes: which requests wait for its next bytes, and since when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Iterator


class AnswerLost(Exception):
    """Neither the API server nor the engine core has the request any more."""


class AwaitedAnswers:
    """Waits by their numbers. Each byte of an answer ends a wait and begins another one."""

    def __init__(self) -> None:
        self._waits: dict[int, asyncio.Timeout] = {}
        self._count = 0
        self.lost = 0
        """Requests whose answers were given up, since this server's start."""

    @property
    def waits(self) -> Collection[int]:
        return self._waits.keys()

    def give_up(self, waits: Iterable[int]) -> None:
        """End each of these requests with `AnswerLost`."""
        for wait in waits:
            self._waits.pop(wait).reschedule(0)
            self.lost += 1

    def begin(self, scope: asyncio.Timeout) -> int:
        """A wait that `scope` would end; its number."""
        self._count += 1
        self._waits[self._count] = scope
        return self._count

    def end(self, wait: int) -> None:
        """Idempotent."""
        self._waits.pop(wait, None)

    @contextlib.asynccontextmanager
    async def answer(self) -> AsyncIterator[AwaitedAnswer]:
        """Context of a request that is with the engine. Raises `AnswerLost`."""
        scope = asyncio.timeout(None)
        awaited = AwaitedAnswer(self, scope)
        try:
            async with scope:
                yield awaited
        except TimeoutError:
            if not scope.expired():
                raise
            raise AnswerLost from None
        finally:
            awaited.end()


class AwaitedAnswer:
    """One request's wait, which begins at once."""

    def __init__(self, book: AwaitedAnswers, scope: asyncio.Timeout) -> None:
        self._book, self._scope = book, scope
        self._wait = book.begin(scope)

    def end(self) -> None:
        """The whole answer is there, or nobody wants it."""
        self._book.end(self._wait)

    @contextlib.contextmanager
    def passed_on(self) -> Iterator[None]:
        """Context in which a part that came goes to the client: nothing is awaited meanwhile."""
        self.end()
        try:
            yield
        finally:
            self._wait = self._book.begin(self._scope)
