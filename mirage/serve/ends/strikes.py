"""Keys whose requests end engines again and again. Pure: the caller tells the time.

A culprit, a request that ended an engine (`suspects.py`), is refused by the digest of its body, so
the same body with one byte changed is not refused. When requests of one key have ended engines of a
tenant three times within ten minutes, the key itself is refused there: each further end would cost
all users of the tenant another restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

MOST_STRIKES = 3
STRIKES_S = 600.0
"""Seconds within which `MOST_STRIKES` strikes of one key count together."""
STRUCK_S = 600.0
"""Seconds for which a key with `MOST_STRIKES` strikes is refused."""


class KeyStrikes:
    """Engine failures charged to API keys at one tenant, by key name. Times in seconds."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}
        self._until: dict[str, float] = {}

    def strike(self, key: str, now: float) -> bool:
        """Note that a request of `key` ended the engine; true if this strike was one too many, so
        that the key is refused for `STRUCK_S` seconds.
        """
        self._forget(now)
        times = self._times.setdefault(key, deque())
        times.append(now)
        if len(times) < MOST_STRIKES:
            return False
        del self._times[key]
        self._until[key] = now + STRUCK_S
        return True

    def wait_s(self, key: str, now: float) -> float | None:
        """Seconds for which `key` is still refused; None if it is not."""
        until = self._until.get(key, now)
        return until - now if until > now else None

    @property
    def remembered(self) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Times of strikes, and times until which keys are refused, both by the keys' names."""
        return {key: list(times) for key, times in self._times.items()}, dict(self._until)

    def remember(self, times: Mapping[str, Iterable[float]], until: Mapping[str, float]) -> None:
        """Add what another object has `remembered`: times of strikes, and times until which keys
        are refused, both by the keys' names. A key that is known here gets the new times.
        """
        self._times.update({key: deque(known) for key, known in times.items()})
        self._until.update(until)

    def _forget(self, now: float) -> None:
        """Drop strikes that are too old to count, and refusals that are over."""
        for key, times in list(self._times.items()):
            while times and times[0] + STRIKES_S <= now:
                times.popleft()
            if not times:
                del self._times[key]
        for key in [key for key, until in self._until.items() if until <= now]:
            del self._until[key]
