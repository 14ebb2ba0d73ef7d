"""Request bodies that may have ended an engine, known over all replicas of a tenant. Times are
seconds.

The judgement on the end of an engine (`mirage.serve.ends.suspects`) counts here for the other
replicas too, or one request would end them one by one:

- a culprit is refused everywhere for a while;
- a suspect is never sent again by the router. If its client sends it, it runs on one replica at a
  time;
- until an end is judged, all requests of that engine are held back from other replicas.

A body that was answered well lately is not held back: it may be a health check, which every engine
has most of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

K = TypeVar("K")

REFUSED_S = 300.0
"""Seconds for which a culprit is refused."""
SUSPECTED_S = 600.0
"""Seconds for which a body counts as a suspect."""
UNJUDGED_S = 5.0
"""Longest time in seconds for which a judgement on an end is awaited."""
WELL_S = 3600.0
"""Seconds after a good answer for which a body is not held back because it was in an engine that
ended."""
MOST = 4096
"""Largest number of bodies that are remembered, of each kind."""

Body = tuple[str, str]
"""Tenant, and digest of a request's body."""


class QuarantineHold(NamedTuple):
    """Refusal of a request body that has ended an engine, or may have, for at most `wait_s`
    seconds."""

    wait_s: float
    known: bool
    """True for a culprit; False for a suspect that runs, or an end that is not judged."""


class ReplicaQuarantine:
    """Request bodies that ended engines or may have, of all tenants."""

    def __init__(self) -> None:
        self._culprits: dict[Body, float] = {}
        """Time in seconds until which each body counts as a culprit; the dicts below have such
        times too."""
        self._suspected: dict[Body, float] = {}
        self._unjudged: dict[Body, float] = {}
        self._well: dict[Body, float] = {}
        self._running: Counter[Body] = Counter()

    def begins(self, tenant: str, body_digest: str) -> None:
        """Note that a request is sent to a replica."""
        self._running[tenant, body_digest] += 1

    def ends(self, tenant: str, body_digest: str, now: float, *, well: bool) -> None:
        """Note that a request was answered, `well` or not, or broke off."""
        body = (tenant, body_digest)
        self._running[body] -= 1
        if self._running[body] <= 0:
            del self._running[body]
        if well:
            self._suspected.pop(body, None)
            remember(self._well, [body], now + WELL_S)

    def breaks(self, tenant: str, body_digests: Iterable[str], now: float) -> None:
        """Note that an engine is gone or silent while it had these requests; `judged` follows."""
        bodies = [(tenant, name) for name in body_digests]
        new = [body for body in bodies if self._well.get(body, now) <= now]
        remember(self._unjudged, new, now + UNJUDGED_S)

    def judged(
        self,
        tenant: str,
        there: Iterable[str],
        blamed: Iterable[str],
        now: float,
        *,
        known: bool,
    ) -> None:
        """Note the judgement on the end of an engine: of its requests, listed in `there`, one of
        the `blamed` ended it.

        `known` is True if only one is blamed, and it is certain.
        """
        for name in there:
            self._unjudged.pop((tenant, name), None)
        bodies = [(tenant, name) for name in blamed]
        if known:
            remember(self._culprits, bodies, now + REFUSED_S)
        else:
            remember(self._suspected, bodies, now + SUSPECTED_S)

    def remember(
        self, tenant: str, culprits: Mapping[str, float], suspected: Mapping[str, float]
    ) -> None:
        """Take over what an earlier router has learned: the time until which each body is
        a culprit or a suspect, by its digest."""
        for kind, known in ((self._culprits, culprits), (self._suspected, suspected)):
            for name, until in known.items():
                remember(kind, [(tenant, name)], max(until, kind.get((tenant, name), until)))

    def suspects(self, tenant: str, body_digest: str, now: float) -> bool:
        """True for a body that may have ended an engine."""
        body = (tenant, body_digest)
        kinds = (self._culprits, self._suspected, self._unjudged)
        return any(kind.get(body, now) > now for kind in kinds)

    def holds(self, tenant: str, body_digest: str, now: float) -> QuarantineHold | None:
        """Return the reason why a body must not be sent to any replica now; None if it may be
        sent."""
        body = (tenant, body_digest)
        if (until := self._culprits.get(body, now)) > now:
            return QuarantineHold(until - now, known=True)
        if (until := self._unjudged.get(body, now)) > now:
            return QuarantineHold(until - now, known=False)
        if self._suspected.get(body, now) > now and self._running[body]:
            return QuarantineHold(UNJUDGED_S, known=False)
        return None


def remember(where: dict[K, float], bodies: Iterable[K], until: float) -> None:
    """Remember bodies until a time in seconds, newest last; the oldest beyond `MOST` are
    dropped."""
    for body in bodies:
        where.pop(body, None)
        where[body] = until
    while len(where) > MOST:
        del where[next(iter(where))]
