"""Answers that one tenant's engine owes, as its routers tell of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple


class OwedWait(NamedTuple):
    """A wait."""

    router: str
    """Name of the router whose request waits; the device's own has none."""
    number: int


class OwedAnswers:
    """Waits that have lasted for a while."""

    def __init__(self) -> None:
        self.waits: Collection[OwedWait] = ()
        self.lost = 0
        """Requests whose answers were given up, since this server's start."""
        self._given_up: list[OwedWait] = []

    def awaits(self, router: str, numbers: Iterable[int]) -> None:
        """A router has these waits, and no others."""
        kept = [wait for wait in self.waits if wait.router != router]
        self.waits = [*kept, *(OwedWait(router, number) for number in numbers)]

    def give_up(self, waits: Iterable[OwedWait]) -> None:
        """Have each of these requests end: its answer is lost."""
        gone = [wait for wait in waits if wait in self.waits]
        self.waits = [wait for wait in self.waits if wait not in gone]
        self.lost += len(gone)
        self._given_up += gone

    def take_given_up(self) -> list[OwedWait]:
        """Waits that the routers have to hear of, once each."""
        taken, self._given_up = self._given_up, []
        return taken
