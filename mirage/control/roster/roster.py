"""Roster of a device that has no room for all tenants: events in, orders out. No clock, no I/O.

*Coming.* Tenants that are requested while they are not ready stand in one line, first come first
served, each once however many requests it has. Free bytes go to the first, and others yield what is
missing (`room`). As soon as these bytes are on their way, the next tenant in line may ask. A tenant
for which not enough can be had yet is the head of the line; others pass it only with bytes that it
does not need.

*No swapping without end.* No tenant yields to others before it was awake for `RosterRules.worth`
times as long as its way out and back takes. So however requests come, a tenant's place is empty for
swapping at most half of the time (if `worth` is 1), and no tenant waits longer than a bound, which
`longest_wait_s` of `tests/pure/roster_world.py` derives and its tests check.

*Requests.* A request for a tenant that is ready is passed on. Any other request waits, or is
refused with the predicted time, and its tenant comes all the same. A request that has waited
`wait_s` is refused, and immediately if its tenant is given up for longer than that. A tenant with
running requests drains first. Requests that have not ended in `drain_s` wait until it is awake
again, or end with its process. If another process passes requests on, which learns of states a
moment later, a tenant is told nothing before that process has `confirmed` its drain. An engine that
was told to sleep and does not in `obey_s` is stopped: otherwise its place, and the tenant that
waits for it, would wait for ever.

The caller sends the orders of `decide`, and reports their outcome to the roster by `heard`.
"""

from __future__ import annotations

from itertools import count
from math import inf

from mirage.control.roster.member import DrainGoal, RosterMember
from mirage.control.roster.needs import StateBytes, SwitchTimes, check_served
from mirage.control.roster.orders import Admission, RosterOrder, RosterVerb
from mirage.control.roster.outlook import predicted_s
from mirage.control.roster.room import DeviceRoom, Yielding
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.specs import TenantSpec
from mirage.control.roster.states import (
    COMING,
    GONE,
    Life,
    LifeEvent,
    LifeState,
    UnexpectedEventError,
)

HEARD = frozenset(LifeEvent) - {LifeEvent.START, LifeEvent.WAKE, LifeEvent.DRAIN}
"""Events that report an outcome, unlike orders."""


class NoSuchMemberError(KeyError):
    """Error: no tenant of this name is on the roster, or it is being removed."""


class Roster:
    """All tenants of one device of `device_bytes` bytes. Times are seconds of any clock that only
    grows."""

    def __init__(
        self, device_bytes: int, rules: RosterRules | None = None, *, apart: bool = False
    ) -> None:
        """Make an empty roster. `apart`: another process passes requests on to tenants that are
        ready.

        That process says how many requests run (`counted`), and that it has seen a drain
        (`confirmed`).
        """
        self.device_bytes, self._apart = device_bytes, apart
        self.rules = rules or RosterRules()
        self.members: dict[str, RosterMember] = {}
        self.room = DeviceRoom(device_bytes, self.members, self.rules)
        self._numbers = count()
        self.quiet_until = -inf
        """Time in seconds before which there is nothing to decide without an event."""

    # -- specs --------------------------------------------------------------------------

    def applied(self, spec: TenantSpec, own: StateBytes, times: SwitchTimes, now: float) -> None:
        """Declare a tenant, or declare it anew: other bytes count from its next start on.

        Raise `NeverServedError` if it can never be served beside the pinned tenants, or is pinned
        and another could never be served beside it; then nothing has changed.
        """
        self._check_served(spec, own)
        self.declares(spec, own, times, now)

    def declares(self, spec: TenantSpec, own: StateBytes, times: SwitchTimes, now: float) -> None:
        """Declare a tenant as `applied` does, without the check that it can be served beside all
        others."""
        self.quiet_until = -inf
        keeps = spec.keep_weights == "host"
        member = self.members.get(spec.name)
        if member is None:
            member = RosterMember(spec, own, times, Life(keeps=keeps), since=now)
            member.eager = spec.start == "eager"
            self.members[spec.name] = member
        if spec.start == "eager" and (member.removed or member.spec.start != "eager"):
            member.eager = member.removed or member.state in GONE
        if spec.keep_weights != member.spec.keep_weights:
            member.life = member.life._replace(keeps=keeps)
        member.spec, member.times = spec, times
        member.declares(own)
        if member.removed:
            member.removed, member.wish = False, None
            if member.is_asked_for:
                self._join_line(member, now)

    def mended(self, name: str) -> None:
        """Let a tenant that broke start without waiting for its retry time, if anything starts it:
        the cause may be gone."""
        self.quiet_until = -inf
        self.members[name].retry_at = -inf

    def ruled(self, rules: RosterRules) -> None:
        """Use other rules from now on."""
        self.quiet_until = -inf
        self.rules = rules
        self.room = DeviceRoom(self.device_bytes, self.members, rules)

    def kept(self, name: str, *, kept: bool) -> None:
        """Note that a tenant's weights are kept in host memory from now on, or no longer."""
        member = self.members[name]
        member.life = member.life.kept(kept=kept)
        self.quiet_until = -inf

    def adopted(self, name: str, life: Life, now: float) -> None:
        """Enter the state that a tenant which was just `applied` is in already.

        Raise `AssertionError` if the device has no room for it, and `NoSuchMemberError` if the
        tenant is not on the roster.
        """
        member = self.members.get(name)
        if member is None:
            raise NoSuchMemberError(name)
        self.quiet_until = -inf
        member.adopt(life, now)
        self.check()

    def removed(self, name: str) -> None:
        """Remove a tenant: it drains and stops. No error if it is not on the roster."""
        self.quiet_until = -inf
        if (member := self.members.get(name)) is not None:
            member.removed, member.wish, member.eager = True, DrainGoal.STOP, False

    def _check_served(self, spec: TenantSpec, own: StateBytes) -> None:
        others = [m for m in self.members.values() if m.name != spec.name and not m.removed]
        pinned = [m.next_own for m in others if m.spec.pinned]
        check_served(spec.name, own, pinned, self.device_bytes)
        if spec.pinned:
            for other in others:
                beside = [m.next_own for m in others if m.spec.pinned and m is not other]
                check_served(other.name, other.next_own, [own, *beside], self.device_bytes)

    # -- requests -----------------------------------------------------------------------

    def asked(self, name: str, now: float, *, device_s: float = 0.0) -> Admission:
        """Answer a request for a tenant. Raise `NoSuchMemberError` if it is not on the roster or is
        being removed.

        `device_s`: seconds until a device that has failed is looked at again; the request is
        refused then. 0 if the device works.
        """
        member = self.members.get(name)
        if member is None or member.removed:
            raise NoSuchMemberError(name)
        self.quiet_until = -inf
        member.last_busy = now
        if member.state is LifeState.READY and not device_s:
            member.running += 1
            return Admission(passed_on=True)
        if member.state is not LifeState.READY:
            self._join_line(member, now)
        wait_s = self.predicted_s(name, now) + device_s
        if device_s or len(member.waiting) >= member.spec.queued or wait_s > member.spec.wait_s:
            member.promised = True
            return Admission(retry_s=wait_s)
        member.waiting.append(now)
        return Admission(waits=True)

    def device_failed(self, now: float, device_s: float, why: str) -> list[RosterOrder]:
        """Take all waiting requests off the roster, and return the orders to refuse them: the
        device has failed, and no tenant starts for `device_s` seconds."""
        self.quiet_until = -inf
        return [
            self._refusal(m, len(m.waiting), self.predicted_s(m.name, now) + device_s, why)
            for m in self.members.values()
            if m.waiting
        ]

    def counted(self, name: str, more: int, now: float) -> None:
        """Note that another process has `more` requests of a tenant running than before, or fewer
        if negative.

        0 if as many have ended as came. No error if the tenant is not on the roster.
        """
        if (member := self.members.get(name)) is None:
            return
        self.quiet_until = -inf
        member.last_busy = now
        if more > 0 and member.state in (LifeState.READY, LifeState.DRAINING):
            member.running += more
        for _ in range(-more):
            self.ended(name, now)

    def confirmed(self, name: str) -> None:
        """Note that all routers know that a tenant drains: they pass no more requests on to it, and
        have told of all that they passed on, so that it may yield when these have ended."""
        if (member := self.members.get(name)) is not None:
            self.quiet_until = -inf
            member.unconfirmed = False

    def ended(self, name: str, now: float) -> None:
        """Note that a request that was passed on has ended. No error for a request that ended with
        its engine."""
        member = self.members.get(name)
        if member is None or not (member.running or member.inside):
            return
        self.quiet_until = -inf
        member.last_busy = now
        if member.running:
            member.running -= 1
        else:
            member.inside -= 1
            member.leave_unless_asked_for()

    def left(self, name: str, place: int = -1) -> None:
        """Remove a waiting request whose client has gone; `place` counts from the oldest, 0; -1 is
        the newest."""
        member = self.members.get(name)
        self.quiet_until = -inf
        if member is not None and member.waiting:
            del member.waiting[place]
            member.leave_unless_asked_for()

    # -- engines and operators ----------------------------------------------------------

    def heard(self, name: str, event: LifeEvent, now: float, retry_s: float = 0.0) -> None:
        """Note the outcome of an order to tenant `name`, or its engine's end.

        A tenant whose engine crashed, or that the server gives up, may start no sooner than
        `retry_s` seconds after `now`. Raise `UnexpectedEventError` for an order instead of an
        outcome and for an event that the tenant's state does not allow, and `NoSuchMemberError` for
        an unknown name.
        """
        member = self.members.get(name)
        if member is None:
            raise NoSuchMemberError(name)
        if event not in HEARD:
            raise UnexpectedEventError(f"{event.value!r} is an order: nobody hears it")
        self.quiet_until = -inf
        served = member.state is LifeState.READY
        member.happens(event, now)
        if event in (LifeEvent.CRASHED, LifeEvent.GIVEN_UP):
            self._broke(member, served, now + retry_s)
        elif member.is_asked_for:
            self._join_line(member, now)

    def drained(self, name: str, now: float) -> None:
        """Note that a draining tenant has no running requests any more; those that it has not begun
        wait."""
        member = self.members.get(name)
        if member is not None and member.state is LifeState.DRAINING and not member.told:
            self.quiet_until = -inf
            member.until = min(member.until, now)

    def wished(self, name: str, wish: LifeState, now: float, drain_s: float | None = None) -> None:
        """Note that an operator wants the tenant ready, sleeping or stopped, once. Raise
        `NoSuchMemberError` if it is not on the roster or is being removed.

        A tenant that broke may start without waiting for its retry time. Running requests have
        `drain_s` seconds to end before it sleeps or stops; None for the time of the rules.
        """
        member = self.members.get(name)
        if member is None or member.removed:
            raise NoSuchMemberError(name)
        self.quiet_until = -inf
        if wish is LifeState.READY:
            member.wish = None
            if member.state is not LifeState.READY:
                self.mended(name)
                self._join_line(member, now)
                member.promised = True
            return
        member.wish = DrainGoal.SLEEP if wish is LifeState.SLEEPING else DrainGoal.STOP
        member.wish_drain_s = drain_s
        if member.state is LifeState.DRAINING and not member.told:
            member.until = now + (self.rules.drain_s if drain_s is None else drain_s)
        member.eager = member.promised = False
        if not member.is_asked_for:
            member.leave_line()

    def restarted(self, name: str, now: float, drain_s: float | None = None) -> None:
        """Restart a tenant for its operator: it stops, then joins the line to start again.

        Its running requests have `drain_s` seconds to end, or the rules' time if None. Raise
        `NoSuchMemberError` as `wished` does.
        """
        self.wished(name, LifeState.STOPPED, now, drain_s)
        self.mended(name)
        member = self.members[name]
        member.promised = True
        if member.state not in (LifeState.READY, *COMING):  # these join once they have drained
            self._join_line(member, now)

    def _broke(self, member: RosterMember, served: bool, retry_at: float) -> None:
        """Note that an engine broke: its tenant goes to the end of the line, else it would hold up
        the others.

        From `retry_at` (seconds) on it comes again, if it `served` before, requests wait for it, or
        it was `promised`. It stays promised until the tenant is given up.
        """
        promised = member.promised
        wanted = member.is_asked_for or promised or member.again
        member.leave_line()
        member.promised = promised and member.state is LifeState.DOWN
        member.retry_at, member.again = retry_at, wanted or served
        member.eager = member.spec.start == "eager" and member.wish is None

    def _join_line(self, member: RosterMember, now: float) -> None:
        if member.queued is not None or member.state in COMING:
            return
        if now < member.retry_at:
            member.again = True
        else:
            member.queued, member.queued_at, member.again = next(self._numbers), now, False

    # -- decisions ----------------------------------------------------------------------

    def decide(self, now: float) -> list[RosterOrder]:
        """Return the orders to carry out now. The next ones come after an event, or at
        `next_deadline`; until then a call returns an empty list."""
        orders: list[RosterOrder] = []
        if now < self.quiet_until:
            return orders
        while more := self._step(now):
            orders += more
        self.quiet_until = inf if (deadline := self._deadline(now)) is None else deadline
        return orders

    def _step(self, now: float) -> list[RosterOrder]:
        orders = self._refuse(now)
        self._forget()
        self._return(now)
        for member in list(self.members.values()):
            if (goal := self._due(member, now)) is not None:
                orders += self._drain(Yielding(member, goal), now)
        orders += self._serve(now)
        return orders + self._end_drains(now)

    @property
    def line(self) -> list[RosterMember]:
        """Tenants that want to come, in their order."""
        queued = [
            m for m in self.members.values() if m.queued is not None and m.state not in COMING
        ]
        return sorted(queued, key=lambda m: m.queued or 0)

    def predicted_s(self, name: str, now: float) -> float:
        """Return the seconds until a tenant is ready, if it is requested now."""
        one, every = self.members[name], self.members.values()
        return predicted_s(one, self.line, every, self.room.free, self.rules, now)

    def next_deadline(self, now: float) -> float | None:
        """Return the time in seconds at which `decide` may have more to say without another event;
        None for never."""
        known = now < self.quiet_until
        deadline = self.quiet_until if known else self._deadline(now)
        return None if deadline == inf else deadline

    def _deadline(self, now: float) -> float | None:
        times = (t for m in self.members.values() for t in m.turning_points(self.rules))
        return min((t for t in times if now < t < inf), default=None)

    def check(self) -> None:
        """Raise `AssertionError` if more bytes are held than the device has, or a request waits for
        a tenant that does not come."""
        assert self.room.free >= 0, f"{-self.room.free} bytes more than the device has"
        for m in self.members.values():
            assert not m.running or m.state in (LifeState.READY, LifeState.DRAINING), m
            comes = m.again or m.queued is not None or m.state in COMING
            assert comes or m.removed or not m.is_asked_for, m
            assert (m.nbytes == 0) == (m.state in GONE) or not m.own.asleep, m

    # -- refusing -----------------------------------------------------------------------

    def _refuse(self, now: float) -> list[RosterOrder]:
        """Return the orders to refuse requests: those that have waited for their limit of time, or
        certainly will have before their tenant may start, and all that wait for a removed
        tenant."""
        orders = []
        for m in self.members.values():
            ends = (came + m.spec.wait_s for came in m.waiting)
            late = sum(m.removed or now >= end or m.given_up_until > end for end in ends)
            if not late:
                continue
            retry_s = 0.0 if m.removed else self.predicted_s(m.name, now)
            orders.append(self._refusal(m, late, retry_s))
        return orders

    @staticmethod
    def _refusal(m: RosterMember, count: int, retry_s: float, why: str = "") -> RosterOrder:
        """Take the `count` oldest requests off the tenant, and return the order to refuse them.
        Their clients are told `retry_s`, in seconds, and the reason `why`; the tenant comes all the
        same, unless it is removed."""
        for _ in range(count):
            m.waiting.popleft()
        m.promised = not m.removed
        return RosterOrder(RosterVerb.REFUSE, m.name, seconds=retry_s, requests=count, why=why)

    def _forget(self) -> None:
        """Drop tenants that were removed and have ended."""
        for member in list(self.members.values()):
            if member.removed and member.state in GONE:
                del self.members[member.name]

    # -- yielding -----------------------------------------------------------------------

    def _due(self, m: RosterMember, now: float) -> DrainGoal | None:
        """Return the goal that a tenant shall drain to by its operator's wish or its own time
        limits; None if neither."""
        if m.removed and m.queued is not None:
            m.leave_line()
        if m.wish is not None and (goal := m.wished_goal()) is not None:
            return goal
        if now < m.yields_at:
            return None
        sleeps = m.state is LifeState.READY and self.rules.sleeps
        return DrainGoal.SLEEP if sleeps else DrainGoal.STOP

    def _drain(self, yielding: Yielding, now: float) -> list[RosterOrder]:
        member, goal = yielding
        member.unconfirmed = self._apart and member.state is LifeState.READY
        member.happens(LifeEvent.DRAIN, now)
        drain_s = self.rules.drain_s
        if member.wish is goal and member.wish_drain_s is not None:
            drain_s = member.wish_drain_s
        member.goal, member.told, member.until = goal, False, now + drain_s
        if (member.is_asked_for or member.promised) and not member.removed:
            self._join_line(member, now)
        if not member.running:
            return []
        return [RosterOrder(RosterVerb.DRAIN, member.name, seconds=drain_s)]

    def _end_drains(self, now: float) -> list[RosterOrder]:
        orders = []
        for m in self.members.values():
            if m.state is not LifeState.DRAINING:
                continue
            if not m.told and not m.unconfirmed and (not m.running or now >= m.until):
                m.told, m.until = True, now + self.rules.obey_s
                sleeps = m.goal is DrainGoal.SLEEP
                verb = RosterVerb.SLEEP if sleeps else RosterVerb.STOP
                orders.append(RosterOrder(verb, m.name))
            elif m.told and m.goal is DrainGoal.SLEEP and now >= m.until:
                m.goal = DrainGoal.STOP
                why = f"it was told to sleep and does not in {self.rules.obey_s:g} s"
                orders.append(RosterOrder(RosterVerb.STOP, m.name, why=why))
        return orders

    # -- coming -------------------------------------------------------------------------

    def _return(self, now: float) -> None:
        for member in self.members.values():
            if member.again and now >= member.retry_at:
                self._join_line(member, now)
            elif member.is_missed_by_nobody and now >= member.retry_at:
                member.happens(LifeEvent.ENDED, now)

    def _serve(self, now: float) -> list[RosterOrder]:
        """Return orders that give free bytes to the line; if it is empty, start tenants ahead of
        demand."""
        orders: list[RosterOrder] = []
        claimed = 0
        head: RosterMember | None = None
        for member in self.line:
            if self._may_come(member, claimed):
                if head is None or self.room.may_pass(member, head, claimed):
                    orders.append(self._come(member, now))
            elif head is None:
                chosen = self.room.yielding(member, now, claimed)
                if chosen is None:
                    head = member
                    continue
                claimed += member.need
                orders += [order for one in chosen for order in self._drain(one, now)]
        orders += self._stop_crowd(now)
        return orders + (self._start_eager(now) if not self.line else [])

    def _may_come(self, member: RosterMember, claimed: int = 0) -> bool:
        """True if a tenant's bytes are free, besides those `claimed` before it and those to be left
        free."""
        drains = member.state is LifeState.DRAINING
        needed = member.need + self.room.spare(member, claimed) + claimed
        return not drains and needed <= self.room.free

    def _come(self, member: RosterMember, now: float) -> RosterOrder:
        wakes = member.state is LifeState.SLEEPING
        nbytes = member.own.awake if wakes else member.own.start
        member.happens(LifeEvent.WAKE if wakes else LifeEvent.START, now)
        member.nbytes, member.came_at, member.eager = nbytes, now, False
        if wakes or not member.own.hollow:
            promised = member.promised
            member.leave_line()
            member.promised = promised
        verb = RosterVerb.WAKE if wakes else RosterVerb.START
        return RosterOrder(verb, member.name, nbytes, min(nbytes, member.own.least))

    def _start_eager(self, now: float) -> list[RosterOrder]:
        """Return orders that start eager tenants one by one, while sleeps of idle tenants make
        enough room."""
        orders: list[RosterOrder] = []
        for m in self.members.values():
            if not m.eager or m.state not in GONE or now < m.retry_at:
                continue
            room = self.room.asleep + m.own.asleep <= self._most_asleep
            if self._may_come(m) and (room or not m.own.hollow):
                orders.append(self._come(m, now))
                continue
            if room:
                chosen = self.room.yielding(m, now, gently=True) or []
                orders += [order for one in chosen for order in self._drain(one, now)]
            break
        return orders

    @property
    def _most_asleep(self) -> float:
        return self.rules.asleep_part * self.device_bytes

    def _stop_crowd(self, now: float) -> list[RosterOrder]:
        """Return orders that stop sleeping tenants beyond their part of the device: low priorities
        first, then the longest idle. Tenants that want to wake stay."""
        crowd = [m for m in self.room.longest_idle(now) if m.queued is None]
        orders: list[RosterOrder] = []
        for member in crowd:
            if self.room.asleep <= self._most_asleep:
                break
            orders += self._drain(Yielding(member, DrainGoal.STOP), now)
        return orders
