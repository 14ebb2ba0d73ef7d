"""Answers that one tenant's engine owes: which requests wait for its next bytes, and since when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class AwaitedAnswers:
    """Answers that are not whole yet. Their waits have numbers, which grow."""

    def __init__(self) -> None:
        self._answers: set[AwaitedAnswer] = set()
        self._count = self._asked = 0

    @property
    def waits(self) -> list[int]:
        """Numbers of waits that have not ended."""
        return sorted(one.wait for one in self._answers if one.wait)

    def take_long(self) -> list[int]:
        """Waits that began before this was asked last."""
        before, self._asked = self._asked, self._count
        return [wait for wait in self.waits if wait <= before]

    def give_up(self, waits: Iterable[int]) -> None:
        """End each of these requests, unless bytes of its answer have come meanwhile."""
        lost = set(waits)
        for one in self._answers:
            if one.wait in lost:
                one.give_up()

    def next(self) -> int:
        """Number of a wait that begins."""
        self._count += 1
        return self._count

    def begin(self, answer: AwaitedAnswer) -> None:
        """Begin a wait. Call `over` when it ends."""
        self._answers.add(answer)

    def over(self, answer: AwaitedAnswer) -> None:
        """The answer is whole, or nobody wants it any more."""
        self._answers.discard(answer)


class AwaitedAnswer:
    """The answer to one request. A wait begins at once; each part of the answer ends it and
    begins the next.

    Call `over` at the end.
    """

    __slots__ = ("_book", "_scope", "lost", "wait")

    def __init__(self, book: AwaitedAnswers, scope: asyncio.Timeout) -> None:
        """`scope` expires if the answer is given up."""
        self._book, self._scope = book, scope
        self.lost = False
        """True once neither the API server nor the engine core has the request any more."""
        self.wait = book.next()
        """Number of the present wait, 0 between two of them."""
        book.begin(self)

    def end(self) -> None:
        """A part has come and goes to the client, or nobody wants it: nothing is awaited."""
        self.wait = 0

    def again(self) -> None:
        """The next part is awaited."""
        self.wait = self._book.next()

    def give_up(self) -> None:
        """The answer never comes."""
        self.wait, self.lost = 0, True
        if not self._scope.expired():
            self._scope.reschedule(0)

    def over(self) -> None:
        """End the wait for it. Idempotent."""
        self.wait = 0
        self._book.over(self)
