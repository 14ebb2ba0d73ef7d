"""Changes of the tenants' states, by looking at them: since when, and why the last time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mirage.serve.admin.forms import StateChange


class SeenState(NamedTuple):
    """A tenant when it was looked at. `since` is when its state was seen first."""

    state: str
    reason: str
    since: float = 0.0


class StateJournal:
    """Remembers each tenant's state. `now` in seconds of any clock."""

    def __init__(self, found: Mapping[str, SeenState], now: float) -> None:
        self._seen = {name: seen._replace(since=now) for name, seen in found.items()}

    def look(self, found: Mapping[str, SeenState], now: float) -> list[StateChange]:
        """Changes since the last look, by its `now`."""
        changes = []
        for name, seen in found.items():
            before = self._seen[name]
            changed = seen.state != before.state
            since = now if changed else before.since
            self._seen[name] = SeenState(seen.state, seen.reason or before.reason, since)
            if changed:
                changes.append(
                    StateChange(
                        t=now,
                        tenant=name,
                        before=before.state,
                        state=seen.state,
                        reason=seen.reason,
                    )
                )
        return changes

    def since(self, name: str) -> float:
        return self._seen[name].since

    def reason(self, name: str) -> str:
        """The last reason that was given; empty if none was."""
        return self._seen[name].reason
