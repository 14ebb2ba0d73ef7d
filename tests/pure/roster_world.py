"""Fake engines that carry out the roster's orders within their times, and count requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from mirage.control.roster.member import DrainGoal, RosterMember
from mirage.control.roster.needs import StateBytes, SwitchTimes
from mirage.control.roster.orders import RosterOrder, RosterVerb
from mirage.control.roster.roster import Roster
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.specs import TenantSpec
from mirage.control.roster.states import LifeEvent, LifeState, WeightsPlace

EPSILON = 1e-6


@dataclass
class RosterEngine:
    """State of one tenant's fake engine. The test counts it, independently of the roster."""

    held: int = 0
    done: tuple[float, LifeEvent] | None = None
    """Time and event that the engine will tell the roster next; None if no change of state is under
    way.
    """
    running: int = 0
    inside: int = 0
    """Number of requests in the engine's own queue while it sleeps."""
    waiting: list[float] = field(default_factory=list)
    ready_at: float = inf
    drained_at: float = inf
    wanted_at: float = inf
    """Time since which a request waits for the tenant to become ready; infinity if none waits."""
    deaf: bool = False
    """True if it ignores an order to sleep, although it still shows signs of life."""
    free_to_go: bool = False
    """True if its operator, or its own times, may end it at any moment."""

    def rests(self) -> None:
        """Forget since when the tenant is wanted, if no request waits for it any more."""
        if not self.waiting and not self.inside:
            self.wanted_at = inf


def longest_wait_s(members: Iterable[RosterMember], rules: RosterRules) -> float:
    """Return the seconds within which any tenant in the line is ready, whatever else is requested.

    This holds if orders take the times of their tenants, and no engine breaks. The line is first
    come first served, and each tenant is in it once: at most all others are before one. At its head
    it waits until those that came before it was there are ready (W) and have been awake for their
    time (T), or until it has been patient (P), and until they have drained (D) and left (S). No
    other tenant comes meanwhile except for bytes that it does not need, and none behind it stops it
    once it sleeps; a hollow start (W) may come before all that. So n heads one after the other, and
    its own way, take n (W + max(W + T, P) + D + S) + W.
    """
    every = list(members)
    comes = max((max(m.times.cold_s, m.times.warm_s, m.times.wake_s) for m in every), default=0.0)
    back = max((m.times.stop_s + m.times.cold_s for m in every), default=0.0)
    back = max([back, *(m.back_s(DrainGoal.SLEEP) for m in every)])
    leaves = max((max(m.times.sleep_s, m.times.stop_s) for m in every), default=0.0)
    awake = max(rules.worth * back, rules.busy_s, rules.busy_worth * (back + rules.drain_s))
    head = comes + max(comes + awake, rules.patience_s) + rules.drain_s + leaves
    return len(every) * head + comes


class RosterWorld:
    """One device with a roster and fake engines. After every event the world checks what the roster
    promises.
    """

    def __init__(self, device: int, rules: RosterRules, part: float = 1.0) -> None:
        """Each engine takes `part` of the time that its tenant's `SwitchTimes` allow for a change
        of state.
        """
        self.roster, self.device, self.part = Roster(device, rules), device, part
        self.engines: dict[str, RosterEngine] = {}
        self.now = 0.0
        self.log: list[tuple[float, RosterOrder]] = []
        self.longest = 0.0
        """Longest time in seconds for which a tenant with requests has waited to become ready,
        while the world was `calm`.
        """
        self.calm = True
        """True until an engine breaks. A test sets it to False when it adds, changes or removes a
        tenant.
        """

    # -- events -------------------------------------------------------------------------

    def apply(self, spec: TenantSpec, own: StateBytes, times: SwitchTimes) -> None:
        self.roster.applied(spec, own, times, self.now)
        self.engines.setdefault(spec.name, RosterEngine())
        self.decide()

    def remove(self, name: str) -> None:
        self.roster.removed(name)
        self.engines[name].free_to_go = True
        self.decide()

    def wish(self, name: str, wish: LifeState, drain_s: float | None = None) -> None:
        self.roster.wished(name, wish, self.now, drain_s)
        self.engines[name].free_to_go = True
        self.decide()

    def restart(self, name: str) -> None:
        self.roster.restarted(name, self.now)
        self.engines[name].free_to_go = True
        self.decide()

    def ask(self, name: str) -> str:
        engine = self.engines[name]
        answer = self.roster.asked(name, self.now)
        if answer.passed_on:
            assert self.state(name) is LifeState.READY and not answer.waits
            engine.running += 1
        elif answer.waits:
            engine.waiting.append(self.now)
            engine.wanted_at = min(engine.wanted_at, self.now)
        else:
            assert answer.retry_s > 0
        self.decide()
        return "passed on" if answer.passed_on else "waits" if answer.waits else "refused"

    def end(self, name: str) -> None:
        engine = self.engines[name]
        if engine.running or engine.inside:
            if engine.running:
                engine.running -= 1
            else:
                engine.inside -= 1
                engine.rests()
            self.roster.ended(name, self.now)
            self.decide()

    def leave(self, name: str) -> None:
        engine = self.engines[name]
        if engine.waiting:
            engine.waiting.pop()
            self.roster.left(name)
            engine.rests()
            self.decide()

    def crash(self, name: str, retry_s: float = 1.0) -> None:
        if self.state(name) in (LifeState.STOPPED, LifeState.DOWN, LifeState.FAILED):
            return
        self.engines[name].done = self.now, LifeEvent.CRASHED
        self.calm = False
        self._say(name, retry_s)

    def give_up(self, name: str, retry_s: float) -> None:
        """Tell the roster that an engine which has just crashed will not be started again before
        `retry_s`; its waiting requests may be refused.
        """
        self.roster.heard(name, LifeEvent.GIVEN_UP, self.now, retry_s)
        self.decide()

    # -- time ---------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass. Engines finish their changes of state, and the roster decides at its
        deadlines, each at its time.
        """
        end = self.now + seconds
        for _ in range(100_000):
            saying = [(e.done[0], name) for name, e in self.engines.items() if e.done]
            first = min(saying, default=(inf, ""))
            deadline = self.roster.next_deadline(self.now)
            time = min(first[0], inf if deadline is None else deadline)
            if time > end:
                break
            self._nothing_before(time)
            self.now = max(self.now, time)
            if first[0] <= self.now:
                self._say(first[1])
            else:
                self.decide()
        else:
            raise AssertionError("time stands still")
        self.now = end
        self.decide()

    def _nothing_before(self, time: float) -> None:
        """Check that the roster has nothing to do before `time`, so its `next_deadline` is not too
        late. Half-way it is asked again, with its memory of being quiet cleared.
        """
        middle = (self.now + time) / 2
        if self.now < middle < time:
            self.roster.quiet_until = -inf
            assert self.roster.decide(middle) == []

    def _say(self, name: str, retry_s: float = 0.0) -> None:
        engine = self.engines[name]
        assert engine.done is not None
        event, engine.done = engine.done[1], None
        member = self.roster.members[name]
        self.roster.heard(name, event, self.now, retry_s)
        if event in (LifeEvent.STARTED, LifeEvent.WOKE) and member.state is LifeState.READY:
            self._serves(engine, member.own.awake)
        elif event is LifeEvent.SLEPT:
            engine.held = member.own.asleep
            if engine.running:
                engine.wanted_at = min(engine.wanted_at, self.now)
            engine.inside += engine.running
            engine.running = 0
        elif event in (LifeEvent.ENDED, LifeEvent.CRASHED):
            engine.held = engine.running = engine.inside = 0
            engine.rests()
        self.decide()

    def _serves(self, engine: RosterEngine, awake: int) -> None:
        if engine.waiting and self.calm:
            self.longest = max(self.longest, self.now - engine.wanted_at)
        engine.running += len(engine.waiting) + engine.inside
        engine.waiting.clear()
        engine.inside = 0
        engine.held, engine.ready_at, engine.wanted_at = awake, self.now, inf
        engine.free_to_go = False

    # -- orders -------------------------------------------------------------------------

    def decide(self) -> None:
        for order in self.roster.decide(self.now):
            self.log.append((self.now, order))
            self._obey(order)
        self.roster.quiet_until = -inf
        assert self.roster.decide(self.now) == [], "it has nothing to add"
        for name in [n for n in self.engines if n not in self.roster.members]:
            gone = self.engines.pop(name)
            assert not gone.held and not gone.waiting and gone.done is None
        self.check()

    def _obey(self, order: RosterOrder) -> None:
        engine = self.engines[order.tenant]
        member = self.roster.members.get(order.tenant)
        if order.verb is RosterVerb.REFUSE:
            assert order.requests <= len(engine.waiting)
            del engine.waiting[: order.requests]
            engine.rests()
            return
        assert member is not None
        times = member.times
        if order.verb is RosterVerb.DRAIN:
            assert engine.running
            engine.drained_at = self.now + order.seconds
        elif order.verb is RosterVerb.WAKE:
            assert engine.held == member.own.asleep and engine.done is None
            self._takes(engine, order.nbytes)
            self._will(engine, times.wake_s, LifeEvent.WOKE)
        elif order.verb is RosterVerb.START:
            assert engine.held == 0 and engine.done is None
            cold = member.life.place is WeightsPlace.DISK
            self._takes(engine, order.nbytes)
            event = LifeEvent.SLEPT if member.own.hollow else LifeEvent.STARTED
            self._will(engine, times.cold_s if cold else times.warm_s, event)
        else:
            self._goes(order.verb, engine, times)

    def _goes(self, verb: RosterVerb, engine: RosterEngine, times: SwitchTimes) -> None:
        assert not engine.running or self.now >= engine.drained_at, "running, and not drained"
        engine.drained_at = inf
        if verb is RosterVerb.SLEEP and engine.deaf:
            return
        if verb is RosterVerb.SLEEP:
            self._will(engine, times.sleep_s, LifeEvent.SLEPT)
        else:
            self._will(engine, times.stop_s, LifeEvent.ENDED)

    def _takes(self, engine: RosterEngine, nbytes: int) -> None:
        engine.held = nbytes
        held = sum(e.held for e in self.engines.values())
        assert held <= self.device, f"{held} bytes of {self.device}"

    def _will(self, engine: RosterEngine, seconds: float, event: LifeEvent) -> None:
        engine.done = self.now + self.part * seconds, event

    # -- what must hold -----------------------------------------------------------------

    def state(self, name: str) -> LifeState:
        return self.roster.members[name].state

    def longest_wait_s(self) -> float:
        return longest_wait_s(self.roster.members.values(), self.roster.rules)

    def check(self) -> None:
        self.roster.check()
        bound = self.longest_wait_s()
        for name, engine in self.engines.items():
            member = self.roster.members[name]
            assert engine.held <= member.nbytes, name
            assert engine.running == member.running, name
            assert engine.inside == member.inside, name
            assert (
                len(engine.waiting)
                == len(member.waiting)
                <= max(member.spec.queued, engine.running + len(engine.waiting))
            )
            if engine.running:
                assert self.state(name) in (LifeState.READY, LifeState.DRAINING)
            oldest = min(engine.waiting, default=inf)
            assert self.now < oldest + member.spec.wait_s + EPSILON, "answered in time"
            if self.calm:
                assert self.now <= engine.wanted_at + bound + EPSILON, f"{name} waits too long"
