"""Who holds memory that another tenant's engine waits for, and who of them is overdue. Pure.

An engine that starts again needs its tenant's share, and finds part of it lent to others. Those
give it back as fast as they can: what running requests sit on comes when these have ended, so
one that reports is waited for. One that says nothing, or could give back and does not, is
overdue after `hang_s` seconds: it hangs.
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
    """Whether it was told to hold less than it does, and no running request sits on that."""
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
