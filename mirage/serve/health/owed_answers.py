"""Answers that one tenant's engine owes, as its routers report them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple


class OwedWait(NamedTuple):
    """One request's wait for the next bytes of its answer."""

    router: str
    """Name of the machine whose router has the request; empty for the device's own router."""
    number: int


class OwedAnswers:
    """Waits for answers of one engine, as routers report them: those that have lasted at least from
    one report to the next."""

    def __init__(self) -> None:
        self.waits: Collection[OwedWait] = ()
        self.lost = 0
        """Number of requests whose answers were given up, since this server's start."""
        self._given_up: list[OwedWait] = []

    def awaits(self, router: str, numbers: Iterable[int]) -> None:
        """Replace the waits of one router by these."""
        kept = [wait for wait in self.waits if wait.router != router]
        self.waits = [*kept, *(OwedWait(router, number) for number in numbers)]

    def give_up(self, waits: Iterable[OwedWait]) -> None:
        """Give up the answers that these waits are for; routers are told with `take_given_up`."""
        gone = [wait for wait in waits if wait in self.waits]
        self.waits = [wait for wait in self.waits if wait not in gone]
        self.lost += len(gone)
        self._given_up += gone

    def take_given_up(self) -> list[OwedWait]:
        """Remove and return the waits that were given up and that routers have not been told."""
        taken, self._given_up = self._given_up, []
        return taken
