"""Answers that a router awaits from one tenant's engine: requests that wait for its next bytes,
numbered in the order in which the waits began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class AwaitedAnswers:
    """Requests to one engine whose answers are not complete. Each wait for the next part of an
    answer has its own number, greater than those of earlier waits.
    """

    def __init__(self) -> None:
        self._answers: set[AwaitedAnswer] = set()
        self._count = self._asked = 0

    @property
    def waits(self) -> list[int]:
        """Numbers of waits that have not ended."""
        return sorted(one.wait for one in self._answers if one.wait)

    def take_long(self) -> list[int]:
        """Numbers of waits that began before the previous call of this and have not ended."""
        before, self._asked = self._asked, self._count
        return [wait for wait in self.waits if wait <= before]

    def give_up(self, waits: Iterable[int]) -> None:
        """End the requests with these waits, unless bytes of their answers have come meanwhile."""
        lost = set(waits)
        for one in self._answers:
            if one.wait in lost:
                one.give_up()

    def next(self) -> int:
        """Number for a wait that begins."""
        self._count += 1
        return self._count

    def begin(self, answer: AwaitedAnswer) -> None:
        """Add an answer that is awaited. Call `over` when it has ended."""
        self._answers.add(answer)

    def over(self, answer: AwaitedAnswer) -> None:
        """Remove an answer that is complete or no longer wanted."""
        self._answers.discard(answer)


class AwaitedAnswer:
    """Answer to one request. A wait begins immediately; each part of the answer ends one wait and
    begins the next.

    Call `over` at the end.
    """

    __slots__ = ("_book", "_scope", "lost", "wait")

    def __init__(self, book: AwaitedAnswers, scope: asyncio.Timeout) -> None:
        """`scope` is made to expire if the answer is given up."""
        self._book, self._scope = book, scope
        self.lost = False
        """True once neither the API server nor the engine core has the request any more."""
        self.wait = book.next()
        """Number of the present wait; 0 while nothing is awaited."""
        book.begin(self)

    def end(self) -> None:
        """End the wait: a part has come and goes to the client, or the answer is no longer
        wanted.
        """
        self.wait = 0

    def again(self) -> None:
        """Begin to wait for the next part."""
        self.wait = self._book.next()

    def give_up(self) -> None:
        """Give the answer up, since it will never come."""
        self.wait, self.lost = 0, True
        if not self._scope.expired():
            self._scope.reschedule(0)

    def over(self) -> None:
        """End the wait, and remove this answer from the book. Idempotent."""
        self.wait = 0
        self._book.over(self)
