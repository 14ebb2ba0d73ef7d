"""Choice of a replica for a request, and the decision to send it again. Times are seconds."""

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
    """Multiple of its part of the requests up to which a replica keeps its sessions and
    prefixes."""
    retries: int = 2
    """Number of times that one request may be sent again."""


class RouteAsk(NamedTuple):
    """A request that is to be sent."""

    tenant: str
    body_digest: str
    """Digest of the request's body; equal bodies have equal ones."""
    affinity: str = ""
    """Key of the request's session or prefix; empty if it has neither."""
    tried: frozenset[str] = frozenset()
    """Devices that the request was sent to before."""


class RouteRefused(StrEnum):
    """Reason why a request is not sent to any replica."""

    CULPRIT = "its body has ended an engine"
    SUSPECT = "its body may have ended an engine, and that is not judged yet or it runs again"
    NO_REPLICA = "no replica serves, or can"


class RouteChoice(NamedTuple):
    """Replica that a request goes to, or the reason why it goes to none."""

    replica: Replica | None
    wait_s: float
    """Expected wait in seconds; after a refusal, seconds until the client may ask again."""
    wakes: bool = False
    """True if the replica has to be woken or started; the request waits meanwhile."""
    refused: RouteRefused | None = None


class RequestFate(StrEnum):
    """Outcome of a request that a replica did not serve."""

    UNREAD = "unread"
    """The connection was refused, or closed before the replica had read the request."""
    TURNED_AWAY = "turned away"
    """The replica answered 503: it has no capacity, or is about to end."""
    ENDED_OUTSIDE = "ended from outside"
    """The engine ended for a reason that is judged not to lie in its requests."""
    BROKE_OFF = "broke off"
    """The engine had read the request, and may have ended because of it."""


def affinity_key(session: str, prefix: str) -> str:
    """Return the key of a session, or else of a prefix, empty if there is neither; a session's and
    a prefix's key are never equal."""
    return f"session {session}" if session else f"prefix {prefix}" if prefix else ""


class Routes:
    """Routes of all tenants. The caller passes the replicas that it knows at the moment."""

    def __init__(self, rules: RouteRules | None = None) -> None:
        self.rules = rules or RouteRules()
        self.quarantine = ReplicaQuarantine()

    def choose(self, ask: RouteAsk, replicas: Sequence[Replica], now: float) -> RouteChoice:
        """Return the replica that a request goes to, or the refusal. Equal arguments and an equal
        quarantine give equal results.
        """
        if (hold := self.quarantine.holds(ask.tenant, ask.body_digest, now)) is not None:
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
        """Return the choice among replicas that are ready.

        A suspect (a request whose body may have ended an engine) goes to the replica with the
        fewest requests, which would end with it. A request with a session or prefix goes to the
        first replica in the ranking of its key (`rendezvous.py`) that is not too busy. Any other
        request goes where the expected wait is shortest.
        """
        rates = known_rates(ready)
        waits = {r.device: r.in_flight / rates[r.device] for r in ready}
        if self.quarantine.suspects(ask.tenant, ask.body_digest, now):
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

        `begun` is True if a byte of an answer has reached its client. `ask.tried` has the devices
        that it was sent to.
        """
        if begun or fate is RequestFate.BROKE_OFF or len(ask.tried) > self.rules.retries:
            return False
        return not self.quarantine.suspects(ask.tenant, ask.body_digest, now)


def _woken(coming: list[Replica]) -> RouteChoice:
    """Return the choice of the replica that is ready first; of equal ones, one that starts or wakes
    already, then the one that needs the fewest bytes of others."""
    rates = known_rates(coming)

    def cost(replica: Replica) -> tuple[float, bool, int, float, str]:
        ordered = replica.target.state not in COMING
        wait_s = replica.in_flight / rates[replica.device]
        return replica.comes_s, ordered, replica.yields, wait_s, replica.device

    chosen = min(coming, key=cost)
    wait_s = chosen.comes_s + chosen.in_flight / rates[chosen.device]
    return RouteChoice(chosen, wait_s, wakes=chosen.target.state not in COMING)
