"""Decisions about memory, counted by tenant and reason. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from mirage.control.controller import Command
from mirage.control.moves import Move
from mirage.protocol import Refusal

FIRST = "first"
"""Reason of the first allotment of an engine, which follows no plan."""
REFUSED = "refused"
"""Reason that stands for a refusal: no memory can be had."""
SLEEP = "sleep"


class DecisionCounts:
    """Counts of messages to engines, by tenant and reason. A message with several reasons counts
    once for each."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def told(self, commands: Iterable[Command], why: Callable[[str], Iterable[Move]]) -> None:
        """Count the messages in `commands`; `why` returns the moves that a tenant's newest
        allotment follows."""
        for tenant, message in commands:
            if isinstance(message, Refusal):
                self.counts[tenant, REFUSED] += 1
                continue
            for reason in {move.reason.value for move in why(tenant)} or {FIRST}:
                self.counts[tenant, reason] += 1

    def slept(self, tenant: str) -> None:
        """Count an order to sleep to a tenant."""
        self.counts[tenant, SLEEP] += 1

    def forget(self, tenant: str) -> None:
        """Drop the counts of a removed tenant."""
        for key in [one for one in self.counts if one[0] == tenant]:
            del self.counts[key]
