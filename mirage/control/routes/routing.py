"""Choice of a replica for a request, and whether it may be sent again. Times in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from mirage.control.roster.states import COMING, LifeState
from mirage.control.routes.quarantine import ReplicaQuarantine
from mirage.control.routes.rendezvous import bounded
from mirage.control.routes.replica import WAKEABLE, Replica, known_rates


@dataclass(frozen=True, slots=True)
class RouteRules:
    """Rules of a router."""

    spread: float = 1.25
    """Multiple of its part of the requests up to which a replica keeps sessions and prefixes."""
    retries: int = 2
    """Times that one request may be sent again."""


class RouteAsk(NamedTuple):
    """A request that is to be sent."""

    tenant: str
    fingerprint: str
    """Equal for equal bodies."""
    affinity: str = ""
    """Key of its session or prefix; empty if it has neither."""
    tried: frozenset[str] = frozenset()
    """Devices that it was sent to before."""


class RouteRefused(StrEnum):
    """Reason why a request goes nowhere."""

    CULPRIT = "its body has ended an engine"
    SUSPECT = "its body may have ended an engine, and that is not judged yet or it runs again"
    NO_REPLICA = "no replica serves, or can"


class RouteChoice(NamedTuple):
    """Replica that a request goes to, or the reason why it goes to none."""

    replica: Replica | None
    wait_s: float
    """Expected wait there; after a refusal, seconds until it may be asked again."""
    wakes: bool = False
    """True if the replica has to be told to come; the request waits meanwhile."""
    refused: RouteRefused | None = None


class RequestFate(StrEnum):
    """End of a request that was sent to a replica in vain."""

    UNREAD = "unread"
    """The connection was refused, or closed before the replica had read it."""
    TURNED_AWAY = "turned away"
    """The replica answered 503: it has no place, or is about to end."""
    ENDED_OUTSIDE = "ended from outside"
    """Its engine ended, and that says nothing of requests: it is judged."""
    BROKE_OFF = "broke off"
    """Its engine had read it, and may have ended by it."""


def affinity_key(session: str, prefix: str) -> str:
    """Key of a session, or else of a prefix; the two are never equal."""
    return f"session {session}" if session else f"prefix {prefix}" if prefix else ""


class Routes:
    """Routes of all tenants, by the replicas that the caller knows at that moment."""

    def __init__(self, rules: RouteRules | None = None) -> None:
        self.rules = rules or RouteRules()
        self.quarantine = ReplicaQuarantine()

    def choose(self, ask: RouteAsk, replicas: Sequence[Replica], now: float) -> RouteChoice:
        """Replica of its tenant for a request. The same question has the same answer."""
        if (hold := self.quarantine.holds(ask.tenant, ask.fingerprint, now)) is not None:
            why = RouteRefused.CULPRIT if hold.known else RouteRefused.SUSPECT
            return RouteChoice(None, hold.wait_s, refused=why)
        able = (r for r in replicas if r.open and r.device not in ask.tried)
        usable = sorted(able, key=lambda r: r.device)
        ready = [r for r in usable if r.target.state is LifeState.READY]
        if ready:
            return self._among(ask, ready, now)
        coming = [r for r in usable if r.target.state in WAKEABLE]
        if coming:
            return _woken(coming)
        return RouteChoice(None, 0.0, refused=RouteRefused.NO_REPLICA)

    def _among(self, ask: RouteAsk, ready: list[Replica], now: float) -> RouteChoice:
        """Choice of replicas that serve.

        A suspect goes where the fewest would end with it, a session or prefix where it was, all
        else where the expected wait is shortest.
        """
        rates = known_rates(ready)
        waits = {r.device: r.in_flight / rates[r.device] for r in ready}
        if self.quarantine.suspects(ask.tenant, ask.fingerprint, now):
            chosen = min(ready, key=lambda r: (r.in_flight, waits[r.device], r.device))
        elif ask.affinity:
            loads = {r.device: r.in_flight for r in ready}
            name = bounded(ask.affinity, loads, rates, self.rules.spread)
            chosen = next(r for r in ready if r.device == name)
        else:
            chosen = min(ready, key=lambda r: (waits[r.device], -rates[r.device], r.device))
        return RouteChoice(chosen, waits[chosen.device])

    def may_retry(self, ask: RouteAsk, fate: RequestFate, now: float, *, begun: bool) -> bool:
        """True if a request may be sent to a replica that it was not sent to before.

        `begun` says that a byte of an answer went to its client. `ask.tried` has where it was.
        """
        if begun or fate is RequestFate.BROKE_OFF or len(ask.tried) > self.rules.retries:
            return False
        return not self.quarantine.suspects(ask.tenant, ask.fingerprint, now)


def _woken(coming: list[Replica]) -> RouteChoice:
    """Replica that is ready first; of equals one on its way, then the fewest bytes of others."""
    rates = known_rates(coming)

    def cost(replica: Replica) -> tuple[float, bool, int, float, str]:
        ordered = replica.target.state not in COMING
        wait_s = replica.in_flight / rates[replica.device]
        return replica.comes_s, ordered, replica.yields, wait_s, replica.device

    chosen = min(coming, key=cost)
    wait_s = chosen.comes_s + chosen.in_flight / rates[chosen.device]
    return RouteChoice(chosen, wait_s, wakes=chosen.target.state not in COMING)
