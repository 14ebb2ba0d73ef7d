"""Journal of the tenants' states: when each began, and the last reason given. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby, pairwise
from typing import NamedTuple

from mirage.serve.admin.forms import StateChange
from mirage.serve.apply.forms import ABSENT


class SeenState(NamedTuple):
    """State of a tenant at a look. `since` is the time of the first look that found it.

    `passed` are the states that it went through since the look before, in order.
    """

    state: str
    reason: str
    since: float = 0.0
    passed: tuple[str, ...] = ()
    removed: bool = False


class StateJournal:
    """Record of each tenant's state. `now` is in seconds of any clock."""

    def __init__(self, found: Mapping[str, SeenState], now: float) -> None:
        self._seen = {name: seen._replace(since=now) for name, seen in found.items()}

    def look(
        self, found: Mapping[str, SeenState], now: float, revision: int = 0
    ) -> list[StateChange]:
        """Changes since the last look, in order; they get the time `now` and the revision."""
        changes = [self._gone(name, now, revision) for name in self._seen.keys() - found.keys()]
        for name, seen in found.items():
            before = self._seen.get(name, SeenState(ABSENT, "", removed=seen.removed))
            way = [state for state, _ in groupby((before.state, *seen.passed, seen.state))]
            since = now if len(way) > 1 else before.since
            reason = seen.reason or before.reason
            self._seen[name] = SeenState(seen.state, reason, since, removed=seen.removed)
            if len(way) == 1 and seen.removed is not before.removed:
                way *= 2
            reasons = [""] * (len(way) - 2) + [seen.reason]
            changes += [
                StateChange(
                    t=now,
                    tenant=name,
                    before=one,
                    state=other,
                    reason=why,
                    revision=revision,
                    removed=seen.removed,
                )
                for (one, other), why in zip(pairwise(way), reasons, strict=False)
            ]
        return changes

    def _gone(self, name: str, now: float, revision: int) -> StateChange:
        before = self._seen.pop(name).state
        return StateChange(
            t=now, tenant=name, before=before, state=ABSENT, revision=revision, removed=True
        )

    def acted(self, name: str, act: str, now: float, revision: int) -> StateChange:
        """Line about an operator's act, with the tenant's state at the last look."""
        seen = self._seen[name]
        return StateChange(
            t=now,
            tenant=name,
            before=seen.state,
            state=seen.state,
            revision=revision,
            removed=seen.removed,
            act=act,
        )

    def since(self, name: str) -> float:
        return self._seen[name].since

    def reason(self, name: str) -> str:
        """Last reason that was given for the tenant's state; empty if none was."""
        return self._seen[name].reason
