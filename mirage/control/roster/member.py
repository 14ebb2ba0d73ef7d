"""State of one tenant on the roster: its life, its bytes, its requests, its times."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from mirage.control.roster.needs import StateBytes, SwitchTimes
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.specs import TenantSpec
from mirage.control.roster.states import (
    BROKEN,
    COMING,
    GONE,
    Life,
    LifeEvent,
    LifeState,
    WeightsPlace,
)


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
    """Number that the tenant drew when it joined the line of tenants that want to come; the lowest
    comes first. None if it is not in the line."""
    queued_at: float = inf
    promised: bool = False
    """True if the tenant shall come although no request waits: a client was told to ask again, or
    an operator wants it ready."""
    came_at: float = -inf
    """Time in seconds of its last order to start or to wake."""
    ready_at: float = -inf
    """Time in seconds at which it last became ready."""
    last_busy: float = -inf
    goal: DrainGoal = DrainGoal.SLEEP
    told: bool = False
    """True for a draining tenant that was ordered to sleep or stop."""
    unconfirmed: bool = False
    """True while a router may not know of the drain yet."""
    until: float = inf
    """Time in seconds at which its drain has to be over; once it was ordered to sleep, the time by
    which it has to sleep."""
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
        """True if requests wait for the tenant to be ready, outside its engine or in its sleeping
        engine."""
        return bool(self.waiting or self.inside)

    @property
    def yields(self) -> int:
        """Bytes that become free for others when the tenant sleeps."""
        return max(0, self.nbytes - self.own.asleep)

    @property
    def gives_way(self) -> bool:
        """True if the tenant is awake or coming, and may be asked to sleep at some time."""
        return not self.stays and (self.state in COMING or self.state is LifeState.READY)

    @property
    def stays(self) -> bool:
        """True if the tenant never yields to others: it is pinned, and its process takes no more
        bytes than its newest declaration, which new tenants were checked against.
        """
        return self.spec.pinned and self.own.awake <= self.next_own.awake

    @property
    def next_own(self) -> StateBytes:
        """Bytes that the tenant's next process will hold in each state, by its newest
        declaration."""
        return self.declared or self.own

    def declares(self, own: StateBytes) -> None:
        """Set the bytes that the tenant holds in each state, from its next process on."""
        if self.state in GONE:
            self.own = own
        else:
            self.declared = own if own != self.own else None

    @property
    def is_missed_by_nobody(self) -> bool:
        """True if the tenant is down and nothing starts it again: no request waits for it, it does
        not start eagerly, and it is not due to come back (`again`, for instance because it was
        ready when its process ended). It then counts as stopped.
        """
        wanted = self.again or self.eager or self.is_asked_for or self.queued is not None
        return self.state is LifeState.DOWN and not wanted

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
        """Seconds that the tenant takes to become ready: those of a wake if it sleeps or wakes,
        else those of a start, warm or cold. While it drains, the seconds from the end of the drain
        on. Time that has passed in the present state is not subtracted."""
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
        """Return the seconds that the tenant takes to sleep or stop, and then to serve again."""
        if goal is DrainGoal.SLEEP:
            return self.times.sleep_s + self.times.wake_s
        start_s = self.times.warm_s if self.life.keeps else self.times.cold_s
        return self.times.stop_s + start_s

    def settled_at(self, goal: DrainGoal, rules: RosterRules) -> float:
        """Return the time in seconds from which on the tenant may yield to others."""
        return self.ready_at + self.awake_s(goal, rules, busy=self.running > 0)

    def awake_s(self, goal: DrainGoal, rules: RosterRules, *, busy: bool) -> float:
        """Return the seconds for which the tenant stays awake before it yields. They are more if it
        is `busy`: it has running requests, which would have to drain."""
        back_s = self.back_s(goal)
        span_s = rules.worth * back_s
        busy_s = rules.busy_worth * (back_s + rules.drain_s)
        return max(span_s, rules.busy_s, busy_s) if busy else span_s

    def rested(self, rules: RosterRules, now: float) -> bool:
        """True for a sleeping tenant that no request asks for, and that was idle for `rest_worth`
        times as long as its stop and start take."""
        return self.queued is None and now >= self.rested_at(rules)

    def rested_at(self, rules: RosterRules) -> float:
        """Return the time in seconds from which on the tenant counts as `rested`, if it still
        sleeps."""
        rest_s = rules.rest_worth * self.back_s(DrainGoal.STOP)
        return max(self.last_busy, self.since) + rest_s

    def leaves_s(self, goal: DrainGoal) -> float:
        """Return the seconds that the tenant takes to sleep, or to stop, after the order."""
        return self.times.sleep_s if goal is DrainGoal.SLEEP else self.times.stop_s

    @property
    def yields_at(self) -> float:
        """Time in seconds at which the tenant's own time limits end its state, if no request comes;
        infinite for never."""
        if self.state is LifeState.READY and not self.running:
            return self.last_busy + self.spec.keep_alive_s
        if self.state is LifeState.SLEEPING and self.queued is None:
            return self.since + self.spec.stop_after_s
        return inf

    def turning_points(self, rules: RosterRules) -> Iterator[float]:
        """Yield the times in seconds at which a decision about the tenant may change."""
        if self.waiting:
            yield self.waiting[0] + self.spec.wait_s
        if self.queued is not None:
            yield self.queued_at + rules.patience_s
        if self.again or self.eager or self.state is LifeState.DOWN:
            yield self.retry_at
        if self.state is LifeState.DRAINING:
            yield self.until
        if self.state is LifeState.SLEEPING:
            yield self.since + self.spec.stop_after_s
            yield self.rested_at(rules)
        if self.state is LifeState.READY and not self.running:
            yield self.last_busy + self.spec.keep_alive_s
        if self.state in (LifeState.READY, LifeState.SLEEPING):
            yield from (self.settled_at(goal, rules) for goal in DrainGoal)

    # -- changes ------------------------------------------------------------------------

    def happens(self, event: LifeEvent, now: float) -> None:
        """Enter an event. Raise `UnexpectedEventError` if the tenant's state does not allow it."""
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
        """Leave the line, because the tenant starts or no request asks for it any more. It is not
        `promised` any more then, and does not come `again` at `retry_at`."""
        self.queued, self.queued_at, self.promised, self.again = None, inf, False, False

    def leave_unless_asked_for(self) -> None:
        """Leave the line if no request waits for the tenant, and it is not `promised`."""
        if not self.is_asked_for and not self.promised:
            self.leave_line()

    def wished_goal(self) -> DrainGoal | None:
        """Return the goal of a drain that the operator's wish asks for now; None if no drain shall
        begin.

        A wish that is fulfilled is dropped. A tenant that broke counts as stopped if no request
        waits for it and it is not `promised`. A drain towards sleep goes on to a stop, if that is
        the wish and the tenant was not told to sleep yet.
        """
        wish = self.wish
        if self.state in BROKEN and not (self.is_asked_for or self.promised):
            self.happens(LifeEvent.ENDED, self.since)
            self.leave_line()
        if self.state in GONE or (self.state is LifeState.SLEEPING and wish is DrainGoal.SLEEP):
            self.wish = None
            return None
        if self.state is LifeState.DRAINING:
            if wish is DrainGoal.STOP and not self.told:
                self.goal = wish
            return None
        return wish if wish is DrainGoal.STOP or self.state is LifeState.READY else None
