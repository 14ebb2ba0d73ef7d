"""Status line of a server, which its service manager shows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mirage.control.roster.states import LifeState


def status_line(url: str, states: Iterable[LifeState]) -> str:
    """Number of tenants in each state, such as ``http://…: 2 ready, 1 sleeping``."""
    counts = Counter(states)
    told = ", ".join(f"{counts[state]} {state.value}" for state in LifeState if counts[state])
    return f"{url}: {told or 'no tenant'}"
