"""Suspects: requests that may have ended an engine. Pure: the caller tells the time, in seconds.

A request that ran alone when the engine failed is the culprit. If several ran, each is a suspect,
and suspects that are sent again run one at a time: so at the next failure at most one of them runs,
and is the culprit. A culprit is refused for a while.

A hang is weaker evidence, and so is any end for a request that was answered well in the last hour.
If such a request ran alone it becomes a suspect, and is the culprit only the second time. A request
that was answered well and ran beside others is neither blamed nor made to wait, because it may be a
probe that always runs. An end from outside is no evidence against requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mirage.config import HANG_S
from mirage.control.routes.quarantine import MOST, REFUSED_S, SUSPECTED_S, WELL_S, remember
from mirage.serve.ends.ending import Ending, Evidence

LATELY_S = 5.0
"""Seconds after a request broke off within which it may still be the cause of the engine's end."""
MOST_NAMED = 4
"""Most requests that one log line names."""


class RequestFacts(NamedTuple):
    """Facts of a request that may be logged and passed on: nothing of its text."""

    route: str
    model: str
    body_digest: str
    """Digest that is equal for equal bodies on the same route."""
    body_bytes: int
    id: str = ""
    """Value of its ``X-Request-Id`` header."""
    key: str = ""
    """Name of its API key; empty if it was asked for none."""

    def __str__(self) -> str:
        named = f", id {self.id!r}" if self.id else ""
        return (
            f"{self.route} of {self.model!r}, {self.body_bytes} bytes, "
            f"digest {self.body_digest}{named}"
        )


@dataclass(frozen=True)
class Blame:
    """Requests that ran when an engine ended, or that had just broken off (`there`), and the one
    that ended it, if known.
    """

    ending: Ending
    there: tuple[RequestFacts, ...] = ()
    culprit: RequestFacts | None = None
    bodies: frozenset[str] = frozenset()
    """Digest of the culprit's body; without a culprit, digests of all requests that may have ended
    the engine.
    """

    def __str__(self) -> str:
        """Words to append to a log line about the end."""
        if self.culprit is not None:
            count = f"; {len(self.there) - 1} others ran" if len(self.there) > 1 else ""
            return f" over a request, refused for {REFUSED_S:g} s ({self.culprit}{count})"
        if not self.there:
            return ""
        if self.ending.evidence is Evidence.NOTHING:
            return f", and {len(self.there)} requests broke off"
        named = "; ".join(map(str, self.there[:MOST_NAMED]))
        more = f"; {len(self.there) - MOST_NAMED} more" if len(self.there) > MOST_NAMED else ""
        return f", perhaps over one of {len(self.there)} requests ({named}{more})"


@dataclass(frozen=True)
class SuspectRefusal:
    """Refusal for `wait_s` seconds; `known` is true for a culprit, false for a mere suspect."""

    wait_s: float
    known: bool


class Suspects:
    """Running requests, suspects and culprits of one tenant."""

    def __init__(self, hang_s: float = HANG_S) -> None:
        """`hang_s` is the number of seconds after which a hang is noticed."""
        self._hang_s = hang_s
        self._running: dict[int, RequestFacts] = {}
        self._broken: deque[tuple[float, RequestFacts]] = deque(maxlen=MOST)
        """Requests that broke off recently, each with its time."""
        self._blames: dict[int, Blame] = {}
        self._suspected: dict[str, float] = {}
        """Time until which each request is a suspect, by the digest of its body."""
        self._culprits: dict[str, float] = {}
        self._good: dict[str, float] = {}
        """Time until which each request counts as answered well, by the digest of its body."""
        self._count = 0

    def refuses(self, body_digest: str, now: float) -> SuspectRefusal | None:
        """Refusal of a request that must not be sent to the engine now; None if it may be sent."""
        if (until := self._culprits.get(body_digest, now)) > now:
            return SuspectRefusal(until - now, known=True)
        if not self._runs_alone(body_digest, now):
            return None  # a quick answer, however many requests broke off lately
        others = {r.body_digest for r in self._there(now)} - {body_digest}
        if any(self._runs_alone(other, now) for other in others):
            return SuspectRefusal(self._wait_s(body_digest, now), known=False)
        return None

    def _wait_s(self, body_digest: str, now: float) -> float:
        """Seconds until the end of each other suspect is `LATELY_S` ago; `LATELY_S` if one still
        runs.
        """

        def is_other(request: RequestFacts) -> bool:
            other = request.body_digest
            return other != body_digest and self._runs_alone(other, now)

        if any(map(is_other, self._running.values())):
            return LATELY_S
        recent = self._recent(now, LATELY_S)
        return max(t for t, request in recent if is_other(request)) + LATELY_S - now

    def begins(self, request: RequestFacts) -> int:
        """Note that a request is sent to the engine; returns its number for `ends` and `blame`."""
        self._count += 1
        self._running[self._count] = request
        return self._count

    def ends(self, number: int, now: float, *, well: bool) -> None:
        """Note that a request has ended; `well` is true if it was answered without an error.

        It may also have been broken off by the engine's end, by an error, or by its client.
        """
        request = self._running.pop(number, None)
        if self._blames.pop(number, None) is not None or request is None:
            return
        if well:
            self._suspected.pop(request.body_digest, None)
            remember(self._good, [request.body_digest], now + WELL_S)
        else:
            while self._broken and self._broken[0][0] + LATELY_S + self._hang_s <= now:
                self._broken.popleft()
            self._broken.append((now, request))

    def suspects(self, body_digest: str, now: float) -> None:
        """Make a request a suspect here, because it is a suspect at another replica; `body_digest`
        is the digest of its body.
        """
        remember(self._suspected, [body_digest], now + SUSPECTED_S)

    def engine_ended(self, ending: Ending, now: float) -> Blame:
        """Note that the engine has ended with all its requests; returns the blame for that."""
        there = self._there(now, LATELY_S + (self._hang_s if ending.hang else 0.0))
        blame = self._judged(ending, there, now)
        if blame.culprit is not None:
            remember(self._culprits, [blame.culprit.body_digest], now + REFUSED_S)
            for forgets in (self._suspected, self._good):
                forgets.pop(blame.culprit.body_digest, None)
        elif ending.evidence is not Evidence.NOTHING:
            remember(self._suspected, (r.body_digest for r in there), now + SUSPECTED_S)
        self._blames.update(dict.fromkeys(self._running, blame))
        self._running.clear()
        self._broken.clear()
        return blame

    @property
    def remembered(self) -> tuple[dict[str, float], dict[str, float]]:
        """Culprits and suspects: the time until which each is one, by the digest of its body."""
        return dict(self._culprits), dict(self._suspected)

    def remember(self, culprits: Mapping[str, float], suspected: Mapping[str, float]) -> None:
        """Add what another object has `remembered`: the time until which each request is a culprit
        or a suspect, by the digest of its body. A request that is known here gets the new time.
        """
        self._culprits.update(culprits)
        self._suspected.update(suspected)

    def blame(self, number: int) -> Blame | None:
        """Blame for the end of the engine that request `number` ran on; None if the engine has not
        ended, and after `ends` of this request.
        """
        return self._blames.get(number)

    def _there(self, now: float, lately_s: float = LATELY_S) -> tuple[RequestFacts, ...]:
        """Requests that run, and those that broke off up to `lately_s` seconds ago.

        The engine may still be computing the latter. A hang is noticed late, so one of them may
        have caused it and broken off meanwhile.
        """
        recent = self._recent(now, lately_s)
        return (*self._running.values(), *(request for _, request in recent))

    def _is_suspect(self, body_digest: str, now: float) -> bool:
        return self._suspected.get(body_digest, now) > now

    def _runs_alone(self, body_digest: str, now: float) -> bool:
        """True for a suspect that may run only while no other suspect runs. One that was answered
        well recently is exempt: it may be a health probe, which must not wait.
        """
        return self._is_suspect(body_digest, now) and not self._was_good(body_digest, now)

    def _was_good(self, body_digest: str, now: float) -> bool:
        return self._good.get(body_digest, now) > now

    def _recent(self, now: float, lately_s: float) -> list[tuple[float, RequestFacts]]:
        return [(since, request) for since, request in self._broken if since + lately_s > now]

    def _judged(self, ending: Ending, there: tuple[RequestFacts, ...], now: float) -> Blame:
        if ending.evidence is Evidence.NOTHING:
            return Blame(ending, there)
        distinct = {request.body_digest: request for request in there}
        new = [name for name in distinct if not self._was_good(name, now)]
        suspects = [name for name in distinct if self._is_suspect(name, now)]
        # A request that was answered well is blamed only if every other was answered well, too.
        before = [name for name in suspects if name in new or not new]
        if ending.evidence is Evidence.FAULT and not before and len(distinct) == 1:
            before = new
        if len(before) == 1:
            return Blame(ending, there, distinct[before[0]], frozenset(before))
        return Blame(ending, there, bodies=frozenset(before or new))
