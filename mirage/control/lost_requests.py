"""Requests that were lost between an API server and its engine core, both of which live. Pure.

The forwarder knows which requests wait for the engine's next bytes; the engine core says how many
requests it has. A request that has waited for `hang_s` seconds while the core had none, and the API
server computed nothing, is with neither of them. The same holds if the core had none at the moment
when the request had waited for so long, and nothing came for as long again, whatever was computed
since. If the core always has other requests, a loss cannot be detected.

Seconds are those of `RunningTime`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

IDLE_S = 3.0
"""Seconds without work before a missing answer counts: it may just have been computed."""
MOST_LOST = 2
"""Number of lost requests after which an API server and its core count as out of step."""

W = TypeVar("W", bound=Hashable)


class LostRequests(Generic[W]):
    """Detector of the requests that one engine has lost since its start, by the waits for its
    answers. Each byte of an answer ends one wait and begins the next."""

    def __init__(self, hang_s: float) -> None:
        self._hang_s = hang_s
        self._since: dict[W, float] = {}
        self._absent: dict[W, float] = {}
        """Time at which the core was seen without a request that had waited for `hang_s`
        seconds."""
        self.lost = 0

    def look(self, now: float, waits: Collection[W], worked: float) -> list[W]:
        """Return the lost ones of `waits`, and add their number to `lost`: neither the core nor the
        API server has their request any more.

        `worked` is the last time at which the core had requests, the API server computed, or the
        API server did not answer.
        """
        self._since = {wait: self._since.get(wait, now) for wait in waits}
        self._absent = {wait: self._absent[wait] for wait in waits if wait in self._absent}
        if now - worked < IDLE_S:
            return []
        lost = [wait for wait in waits if self._is_lost(wait, now, worked)]
        self.lost += len(lost)
        return lost

    def _is_lost(self, wait: W, now: float, worked: float) -> bool:
        since = self._since[wait]
        if now - since < self._hang_s:
            return False
        absent = self._absent.setdefault(wait, now)
        return now - min(absent, max(since, worked)) >= self._hang_s

    @property
    def estranged(self) -> bool:
        """True if enough requests were lost to start the engine anew."""
        return self.lost >= MOST_LOST
