"""State of one tenant on the roster: its life, its bytes, its requests, its times."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from mirage.control.roster.needs import StateBytes, SwitchTimes
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.specs import TenantSpec
from mirage.control.roster.states import COMING, GONE, Life, LifeEvent, LifeState, WeightsPlace


class DrainGoal(StrEnum):
    """Goal of a drain: the tenant sleeps or stops afterwards."""

    SLEEP = "sleep"
    STOP = "stop"


@dataclass(slots=True, eq=False)
class RosterMember:
    """Tenant of the roster. Times are seconds of the clock that events come with."""

    spec: TenantSpec
    own: StateBytes
    times: SwitchTimes
    life: Life
    declared: StateBytes | None = None
    """Bytes of its next process, if they differ from those of the present one; else None."""
    nbytes: int = 0
    """Bytes of the device that the tenant holds or may come to hold."""
    since: float = -inf
    """Time in seconds at which its present state began."""
    running: int = 0
    """Number of requests that were passed on to it and have not ended."""
    inside: int = 0
    """Number of requests that wait in its sleeping engine, because they had not ended when it
    drained."""
    waiting: deque[float] = field(default_factory=deque)
    """Arrival time of each request that waits outside its engine, the oldest first."""
    queued: int | None = None
    """Number in the line of tenants that want to come; None if it is not in the line."""
    queued_at: float = inf
    promised: bool = False
    """True if the tenant shall come although no request waits, because a client was told to ask
    again."""
    came_at: float = -inf
    """Time in seconds of its last order to start or to wake."""
    ready_at: float = -inf
    """Time in seconds at which it last became ready."""
    last_busy: float = -inf
    goal: DrainGoal = DrainGoal.SLEEP
    told: bool = False
    """True for a draining tenant that was ordered to sleep or stop."""
    unconfirmed: bool = False
    """True while the process that passes requests on may not know of the drain."""
    until: float = inf
    """Time in seconds at which its drain has to be over; after the order to sleep, its sleep."""
    wish: DrainGoal | None = None
    """Operator's wish that is not fulfilled yet; None if there is none."""
    wish_drain_s: float | None = None
    """Seconds that running requests have to end before `wish` is fulfilled; None for the time of
    the rules."""
    eager: bool = False
    """True if its process is still to be started without a request for it."""
    again: bool = False
    """True if the tenant joins the line at `retry_at`."""
    retry_at: float = -inf
    removed: bool = False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def state(self) -> LifeState:
        return self.life.state

    @property
    def is_asked_for(self) -> bool:
        """True if requests wait for the tenant, in its engine or outside."""
        return bool(self.waiting or self.inside)

    @property
    def yields(self) -> int:
        """Bytes that become free for others when the tenant sleeps."""
        return max(0, self.nbytes - self.own.asleep)

    @property
    def gives_way(self) -> bool:
        """True if the tenant is awake or coming, and may be asked to sleep at some time."""
        return not self.spec.pinned and (self.state in COMING or self.state is LifeState.READY)

    @property
    def next_own(self) -> StateBytes:
        """Bytes that the tenant's next process will hold in each state, by its newest
        declaration."""
        return self.declared or self.own

    def declares(self, own: StateBytes) -> None:
        """Set the bytes of its processes, from the next one on."""
        if self.state in GONE:
            self.own = own
        else:
            self.declared = own if own != self.own else None

    # -- bytes --------------------------------------------------------------------------

    @property
    def need(self) -> int:
        """Bytes that must become free before the tenant can start or wake, beyond those that it
        holds.

        While it drains: the bytes that it will need after the drain.
        """
        drains = self.state is LifeState.DRAINING
        sleeps = self.state is LifeState.SLEEPING or (drains and self.goal is DrainGoal.SLEEP)
        return self.own.awake - self.own.asleep if sleeps else self.own.start

    @property
    def coming_back(self) -> int:
        """Bytes that will become free soon without another order."""
        if self.state is LifeState.DRAINING:
            return self.gain(self.goal)
        if self.state is LifeState.STARTING:
            return max(0, self.nbytes - self.own.awake)
        return 0

    def gain(self, goal: DrainGoal) -> int:
        """Return the bytes that become free once the tenant sleeps or has stopped."""
        return self.nbytes if goal is DrainGoal.STOP else self.yields

    # -- times --------------------------------------------------------------------------

    @property
    def comes_s(self) -> float:
        """Seconds until the tenant is ready, from its present state, or from the end of its
        drain."""
        drains = self.state is LifeState.DRAINING
        if self.state in (LifeState.SLEEPING, LifeState.WAKING) or (
            drains and self.goal is DrainGoal.SLEEP
        ):
            return self.times.wake_s
        warm = self.life.place is not WeightsPlace.DISK and self.life.keeps
        return self.times.warm_s if warm else self.times.cold_s

    @property
    def given_up_until(self) -> float:
        """Time in seconds before which a tenant that is given up cannot be ready; -inf if it is not
        given up."""
        return self.retry_at + self.comes_s if self.state is LifeState.FAILED else -inf

    def back_s(self, goal: DrainGoal) -> float:
        """Return the seconds of its way out, to sleep or stop, and back."""
        if goal is DrainGoal.SLEEP:
            return self.times.sleep_s + self.times.wake_s
        start_s = self.times.warm_s if self.life.keeps else self.times.cold_s
        return self.times.stop_s + start_s

    def settled_at(self, goal: DrainGoal, rules: RosterRules) -> float:
        """Return the time in seconds from which on the tenant may yield to others."""
        return self.ready_at + self.awake_s(goal, rules, busy=self.running > 0)

    def awake_s(self, goal: DrainGoal, rules: RosterRules, *, busy: bool) -> float:
        """Return the seconds for which the tenant stays awake before it yields; for longer if it is
        `busy`, with running requests that would have to drain."""
        back_s = self.back_s(goal)
        span_s = rules.worth * back_s
        busy_s = rules.busy_worth * (back_s + rules.drain_s)
        return max(span_s, rules.busy_s, busy_s) if busy else span_s

    def rested(self, rules: RosterRules, now: float) -> bool:
        """True for a sleeping tenant without requests that was idle longer than its stop and start
        are worth."""
        return self.queued is None and now >= self.rested_at(rules)

    def rested_at(self, rules: RosterRules) -> float:
        """Return the time in seconds from which on the tenant counts as `rested`, if it still
        sleeps."""
        rest_s = rules.rest_worth * self.back_s(DrainGoal.STOP)
        return max(self.last_busy, self.since) + rest_s

    @property
    def leaves_s(self) -> float:
        """Seconds that the tenant takes to sleep, or to stop, after the order."""
        return self.times.sleep_s if self.goal is DrainGoal.SLEEP else self.times.stop_s

    @property
    def yields_at(self) -> float:
        """Time in seconds at which the tenant's own time limits end its state, if no request comes;
        infinite for never."""
        if self.state is LifeState.READY and not self.running:
            return self.last_busy + self.spec.keep_alive_s
        if self.state is LifeState.SLEEPING and self.queued is None:
            return self.since + self.spec.stop_after_s
        return inf

    # -- changes ------------------------------------------------------------------------

    def happens(self, event: LifeEvent, now: float) -> None:
        """Enter an event. Raise `UnexpectedEventError` if its state does not allow the event."""
        before = self.state
        self.life = self.life.after(event)
        if self.state is not before:
            self.since = now
            self._arrives(now)

    def adopt(self, life: Life, now: float) -> None:
        """Take over a state that came about without orders of this roster."""
        self.life, self.since, self.eager = life, now, False
        self._arrives(now)

    def _arrives(self, now: float) -> None:
        if self.state is LifeState.READY:
            self.nbytes, self.ready_at, self.last_busy = self.own.awake, now, now
            self.running += len(self.waiting) + self.inside
            self.waiting.clear()
            self.inside = 0
            self.leave_line()
        elif self.state is LifeState.SLEEPING:
            self.nbytes = self.own.asleep
            self.inside += self.running
            self.running = 0
        elif self.state in GONE:
            self.nbytes = self.running = self.inside = 0
            self.own, self.declared = self.declared or self.own, None

    def leave_line(self) -> None:
        """Leave the line: the tenant starts, or no request asks for it any more."""
        self.queued, self.queued_at, self.promised, self.again = None, inf, False, False
