"""Answers that one tenant's engine owes, as its router tells of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable


class OwedAnswers:
    """Waits by their numbers, of those that have lasted for a while."""

    def __init__(self) -> None:
        self.waits: Collection[int] = ()
        self.lost = 0
        """Requests whose answers were given up, since this server's start."""
        self._given_up: list[int] = []

    def give_up(self, waits: Iterable[int]) -> None:
        """Have each of these requests end: its answer is lost."""
        gone = [wait for wait in waits if wait in self.waits]
        self.waits = [wait for wait in self.waits if wait not in gone]
        self.lost += len(gone)
        self._given_up += gone

    def take_given_up(self) -> list[int]:
        """Waits that the router has to hear of, once each."""
        taken, self._given_up = self._given_up, []
        return taken
