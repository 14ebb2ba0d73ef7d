"""Debtors: tenants that hold memory for which another tenant's engine waits to start. Pure.

An engine that starts again needs its tenant's share, and finds part of it lent to others. They give
it back as fast as they can. Memory of running requests comes back when these have ended, so a
tenant that goes on reporting is waited for. A tenant that does not report, or that could give
memory back and does not, is overdue after `hang_s` seconds: it hangs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mirage.protocol import Report


class Debtor(NamedTuple):
    """Tenant whose engine holds, or may come to hold, `bytes` bytes more than its share."""

    name: str
    bytes: int
    owes: bool
    """True if the engine was told to hold less than it does, and no running request uses the
    difference."""
    report: Report
    """The engine's newest report."""


@dataclass(frozen=True)
class _DebtSeen:
    debtor: Debtor
    since: float
    """Time in seconds since which the debtor has made no progress."""


class Overdue:
    """Detects debtors that make no progress while an engine waits to start. Times are seconds."""

    def __init__(self, hang_s: float) -> None:
        self._hang_s = hang_s
        self._seen: dict[str, _DebtSeen] = {}

    def look(self, debtors: Iterable[Debtor], now: float) -> dict[str, float]:
        """Return the seconds for which each overdue debtor has made no progress, by name."""
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
