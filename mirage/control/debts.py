"""Debtors: tenants that hold memory for which another tenant's engine waits to start. Pure.

An engine that starts again needs its tenant's share, and finds part of it lent to others. They give
it back as fast as they can. Memory of running requests comes back when these have ended, so a
tenant that reports is waited for. A tenant that says nothing, or that could give memory back and
does not, is overdue after `hang_s` seconds: it hangs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mirage.protocol import Report


class Debtor(NamedTuple):
    """A tenant whose engine holds `bytes` more than its share, or may come to hold them."""

    name: str
    bytes: int
    owes: bool
    """True if it was told to hold less than it does, and no running request uses the difference."""
    report: Report
    """Its newest."""


@dataclass(frozen=True)
class _DebtSeen:
    debtor: Debtor
    since: float
    """Seconds: when it last did what it can."""


class Overdue:
    """Looks at debtors again and again while one tenant waits. Times are seconds."""

    def __init__(self, hang_s: float) -> None:
        self._hang_s = hang_s
        self._seen: dict[str, _DebtSeen] = {}

    def look(self, debtors: Iterable[Debtor], now: float) -> dict[str, float]:
        """For how long each that is overdue has not moved, by its name."""
        self._seen = {d.name: _DebtSeen(d, self._since(d, now)) for d in debtors}
        idle = {name: now - seen.since for name, seen in self._seen.items()}
        return {name: seconds for name, seconds in idle.items() if seconds >= self._hang_s}

    def _since(self, debtor: Debtor, now: float) -> float:
        before = self._seen.get(debtor.name)
        if before is None or _moved(before.debtor, debtor):
            return now
        return before.since


def _moved(before: Debtor, after: Debtor) -> bool:
    if after.bytes < before.bytes or after.owes != before.owes:
        return True
    return not after.owes and after.report is not before.report
