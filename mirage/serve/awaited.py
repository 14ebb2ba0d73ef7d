"""Answers that one tenant's engine owes: which requests wait for its next bytes, and since when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeVar

T = TypeVar("T")


class AnswerLost(Exception):
    """Neither the API server nor the engine core has the request any more."""


class AwaitedAnswers:
    """Waits by their numbers, which grow. Each byte of an answer ends a wait and begins another."""

    def __init__(self) -> None:
        self._waits: dict[int, asyncio.Timeout] = {}
        self._count = self._asked = 0

    @property
    def waits(self) -> Collection[int]:
        return self._waits.keys()

    def take_long(self) -> list[int]:
        """Waits that began before this was asked last."""
        before, self._asked = self._asked, self._count
        return [wait for wait in self._waits if wait <= before]

    def give_up(self, waits: Iterable[int]) -> None:
        """End each of these requests with `AnswerLost`, unless bytes of it have come meanwhile."""
        for wait in waits:
            if (scope := self._waits.pop(wait, None)) is not None:
                scope.reschedule(0)

    def begin(self, scope: asyncio.Timeout) -> int:
        """A wait that `scope` would end; its number."""
        self._count += 1
        self._waits[self._count] = scope
        return self._count

    def end(self, wait: int) -> None:
        """Idempotent."""
        self._waits.pop(wait, None)

    async def answer(self, ask: Callable[[AwaitedAnswer], Awaitable[T]]) -> T:
        """The result of `ask`, a request that is with the engine. Raises `AnswerLost`."""
        scope = asyncio.timeout(None)
        awaited = AwaitedAnswer(self, scope)
        try:
            async with scope:
                return await ask(awaited)
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
        """A part has come and goes to the client, or nobody wants it: nothing is awaited."""
        self._book.end(self._wait)

    def again(self) -> None:
        """The next part is awaited."""
        self._wait = self._book.begin(self._scope)
