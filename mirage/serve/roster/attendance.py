"""Attendance: carries out the roster's orders, with a clock, engines and requests.

The roster decides which tenants of a device are awake; this module obeys, and tells the roster the
results. All happens on the event loop: after each event the orders that follow from it are carried
out immediately.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Protocol

from mirage.control.roster.member import DrainGoal, RosterMember
from mirage.control.roster.needs import StateBytes, SwitchTimes
from mirage.control.roster.orders import RosterOrder, RosterVerb
from mirage.control.roster.roster import NoSuchMemberError, Roster
from mirage.control.roster.specs import TenantSpec
from mirage.control.roster.states import LifeEvent, LifeState, UnexpectedEventError
from mirage.control.time_counts import TimeCounts
from mirage.protocol import Report
from mirage.serve.health.device_health import DeviceHealth
from mirage.serve.roster.ticket import NotInTime, Ticket, TicketState

LONGEST_REST_S = 5.0
"""Most seconds between two decisions, also if nothing is heard."""
LEAST_S = 1.0
"""Least seconds that are predicted for a failed device to be well again."""
WAKE_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
START_BOUNDS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


class Acts(Protocol):
    """Engines of the tenants, as the attendance directs them."""

    def start(self, name: str) -> None:
        """Start the tenant's engine as soon as others have given its share back."""

    def stop_one(self, name: str, why: str) -> None:
        """End the tenant's engine, or do not start it; `why` is the reason to log, empty for
        none.
        """

    def sleep(self, name: str) -> None:
        """Have the tenant's engine give all memory that it can."""

    def wake(self, name: str) -> None:
        """Give the tenant its share again as soon as others have given it back."""

    def shows(self, name: str, state: LifeState) -> None:
        """Note that the tenant has entered another state."""

    def gone(self, name: str) -> None:
        """Note that a tenant that was removed has no engine any more."""


class Attendance:
    """Executor of the roster's orders for one device, which also holds requests back until their
    tenants are ready. `keep` has to run. Times are seconds of `clock`."""

    def __init__(
        self,
        roster: Roster,
        acts: Acts,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
        device: DeviceHealth | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called whenever `passes` or a state may have changed."""
        self.roster = roster
        self._device = device or DeviceHealth()
        self._changed = changed
        self._acts, self._say, self._clock = acts, say, clock
        self._waiting: dict[str, deque[Ticket]] = {name: deque() for name in roster.members}
        self._shown: dict[str, LifeState] = {}
        self.wakes: defaultdict[str, TimeCounts] = defaultdict(partial(TimeCounts, WAKE_BOUNDS))
        """Counts of the seconds from the order to wake until ready, by tenant."""
        self.starts: defaultdict[str, TimeCounts] = defaultdict(partial(TimeCounts, START_BOUNDS))
        """Counts of the seconds that engines took to start, by tenant."""
        self._begun: dict[str, float] = {}
        """Time at which each tenant began to wake or to drain."""
        self._lives: dict[str, int] = {}
        """Number of engines of each tenant that have ended, also before it was removed and added
        again.
        """
        self._counted: dict[str, int] = {}
        """Number of running requests of each tenant that only routers count: see `TenantCount`."""
        self._ending: dict[str, list[Ticket]] = {}
        """Requests that came while a tenant's engine was about to end; the roster does not know of
        them.
        """
        self._news = asyncio.Event()
        self._settling = False

    # -- tenants ------------------------------------------------------------------------

    def declares(self, spec: TenantSpec, own: StateBytes, times: SwitchTimes) -> None:
        """Add a tenant, or declare it anew; see `Roster.declares`. The caller calls `settle`
        afterwards.
        """
        self.roster.declares(spec, own, times, self._clock())
        self._waiting.setdefault(spec.name, deque())

    def remove(self, name: str, drain_s: float | None = None) -> None:
        """Remove a tenant: its requests have `drain_s` seconds to end, None for the roster's own
        time.

        `Acts.gone` is called when its engine has ended. Raises `NoSuchMemberError` for an unknown
        tenant.
        """
        self.roster.wished(name, LifeState.STOPPED, self._clock(), drain_s)
        self.roster.removed(name)
        self.settle()

    # -- requests -----------------------------------------------------------------------

    def ask(self, name: str) -> Ticket:
        """Ticket for a new request to a tenant, which wakes or starts for it if need be. Raises
        `NotInTime` if the request is refused immediately."""
        ticket = Ticket(lambda ticket: self._over(name, ticket))
        if (ending := self._ending.get(name)) is not None:
            if len(ending) >= self.roster.members[name].spec.queued:
                raise NotInTime(self.roster.predicted_s(name, self._clock()))
            ending.append(ticket)
        else:
            self._ask(name, ticket)
            self.settle()
        if ticket.state is TicketState.REFUSED:
            raise NotInTime(ticket.retry_s, ticket.why)
        return ticket

    def passes(self, name: str) -> bool:
        """True if routers may pass requests on to a tenant without asking the supervisor."""
        member = self.roster.members.get(name)
        if member is None:
            return True  # it was refused, and has no engine
        ready = member.state is LifeState.READY and not member.removed
        return ready and name not in self._ending and not self._device.reason

    def life(self, name: str) -> int:
        """Number of the tenant's engine; requests of engines with lower numbers have ended."""
        return self._lives.get(name, 0)

    def counted(self, name: str, life: int, running: int) -> None:
        """Note the number of `running` requests that routers passed on, without asking the
        supervisor, to the tenant's engine with the number `life`.

        A count for an engine that has ended is ignored.
        """
        if life == self.life(name):
            before = self._counted.get(name, 0)
            self._counted[name] = running
            self.roster.counted(name, running - before, self._clock())
            self.settle()

    def queued(self) -> dict[str, int]:
        """Number of requests to each tenant that wait until it is ready."""
        return {
            name: len(waiting) + len(self._ending.get(name, ()))
            for name, waiting in self._waiting.items()
        }

    @property
    def unconfirmed(self) -> list[str]:
        """Draining tenants of which some router may not know that they drain."""
        members = self.roster.members.values()
        return [m.name for m in members if m.state is LifeState.DRAINING and m.unconfirmed]

    def confirmed(self, name: str) -> None:
        """Note that all routers know that a tenant drains, so that the count of its running
        requests can no longer grow."""
        self.roster.confirmed(name)
        self.settle()

    def _ask(self, name: str, ticket: Ticket) -> None:
        try:
            admission = self.roster.asked(name, self._clock(), device_s=self._device_s)
        except NoSuchMemberError:
            ticket.refuse(0.0)
            return
        if admission.passed_on:
            self._pass(name, ticket)
        elif admission.waits:
            self._waiting[name].append(ticket)
        else:
            ticket.refuse(admission.retry_s, self._device.reason)

    @property
    def _device_s(self) -> float:
        """Seconds until a failed device is looked at again; 0 if the device is well."""
        return max(LEAST_S, self._device.wait_s) if self._device.reason else 0.0

    def device_failed(self) -> None:
        """Refuse waiting requests because the device has failed; new ones are refused until it is
        well.
        """
        why, device_s = self._device.reason, self._device_s
        for order in self.roster.device_failed(self._clock(), device_s, why):
            self._obey(order)
        self.settle()

    def _pass(self, name: str, ticket: Ticket) -> None:
        ticket.life = self.life(name)
        ticket.passes()

    def _over(self, name: str, ticket: Ticket) -> None:
        if ticket.state is TicketState.PASSED:
            if ticket.life == self.life(name):  # else it ended with its engine
                self.roster.ended(name, self._clock())
        elif ticket in self._ending.get(name, ()):
            self._ending[name].remove(ticket)
        elif ticket.state is TicketState.WAITING:
            place = self._waiting[name].index(ticket)
            del self._waiting[name][place]
            self.roster.left(name, place)
        self.settle()

    # -- engines ------------------------------------------------------------------------

    def started(self, name: str, seconds: float) -> None:
        """Note that an engine serves, `seconds` after its start began; the next start is predicted
        to take as long, or as long as a wake if that is more.
        """
        member = self.roster.members[name]
        cold_s = max(seconds, member.times.wake_s)
        member.times = replace(member.times, warm_s=cold_s, cold_s=cold_s)
        self.starts[name].add(seconds)
        self.heard(name, LifeEvent.STARTED)

    def ends(self, name: str) -> None:
        """Note that an engine is about to end; requests to its tenant wait until `ended` is
        called.
        """
        if name in self.roster.members:
            self._ending.setdefault(name, [])
            self._changed()

    def ended(self, name: str, retry_s: float, *, failed: bool) -> None:
        """Note that an engine has ended or did not start; it may start again in `retry_s` seconds.

        With `failed` the tenant is given up for that time.
        """
        self._note_end(name, retry_s, failed=failed)
        for ticket in self._ending.pop(name, ()):
            self._ask(name, ticket)
        self.settle()

    def _note_end(self, name: str, retry_s: float, *, failed: bool) -> None:
        member = self.roster.members[name]
        self._next_life(name)
        if self._is_told(member, DrainGoal.STOP):
            self.heard(name, LifeEvent.ENDED)
            return
        self.heard(name, LifeEvent.CRASHED, retry_s)
        if failed:
            self.heard(name, LifeEvent.GIVEN_UP, retry_s)

    def _next_life(self, name: str) -> None:
        """Count another engine; the requests of the one before have ended."""
        self._lives[name] = self.life(name) + 1
        self._counted.pop(name, None)

    @staticmethod
    def _is_told(member: RosterMember, goal: DrainGoal) -> bool:
        return member.state is LifeState.DRAINING and member.told and member.goal is goal

    def heard(self, name: str, event: LifeEvent, retry_s: float = 0.0) -> None:
        """Note an event of an engine; one that does not fit the tenant's state came late and is
        ignored. An engine that broke may start again in `retry_s` seconds."""
        if name not in self.roster.members:
            return
        with suppress(UnexpectedEventError):
            self.roster.heard(name, event, self._clock(), retry_s)
        if self.roster.members[name].state is LifeState.READY:
            waiting, self._waiting[name] = self._waiting[name], deque()
            for ticket in waiting:
                self._pass(name, ticket)
        self.settle()

    def reported(self, name: str, report: Report) -> None:
        """Note an engine's report: it may show that the engine sleeps, or has woken."""
        if (member := self.roster.members.get(name)) is None:
            return
        if report.asleep and self._is_told(member, DrainGoal.SLEEP):
            member.own = replace(member.own, asleep=report.held_bytes)
            member.times = member.times.measured(report.sleep_s, report.wake_s)
            self.heard(name, LifeEvent.SLEPT)
        elif member.state is LifeState.WAKING and self._has_woken(name, report):
            member.times = member.times.measured(report.sleep_s, report.wake_s)
            self.heard(name, LifeEvent.WOKE)

    def _has_woken(self, name: str, report: Report) -> bool:
        """True if the engine is awake and has KV memory for a request."""
        least = self.roster.members[name].own.least_extents
        return not report.asleep and report.kv_usable_extents >= least

    # -- operators ----------------------------------------------------------------------

    def wish(self, name: str, state: LifeState, drain_s: float | None = None) -> None:
        """Bring a tenant to state `state`, as an operator wants. Raises `NoSuchMemberError` for an
        unknown tenant.

        Running requests have `drain_s` seconds to end, None for the roster's own time.
        """
        self.roster.wished(name, state, self._clock(), drain_s)
        self.settle()

    def restart(self, name: str, drain_s: float | None = None) -> None:
        """Stop a tenant, and start it again, as an operator wants. Raises `NoSuchMemberError` for
        an unknown tenant.

        Running requests have `drain_s` seconds to end, None for the roster's own time.
        """
        self.roster.restarted(name, self._clock(), drain_s)
        self.settle()

    def wake_s(self, name: str) -> float:
        """Seconds that the tenant's next wake is expected to take: as long as its last one, or a
        prediction while none was measured; 0 for an unknown tenant.
        """
        member = self.roster.members.get(name)
        return 0.0 if member is None else member.times.wake_s

    def ready_s(self, name: str) -> float:
        """Predicted seconds until a tenant would be ready if a request came now."""
        return self.roster.predicted_s(name, self._clock())

    def yields_s(self, name: str) -> float | None:
        """Seconds until `keep_alive` or `stop_after` puts the tenant to sleep or stops it; None if
        they do not.
        """
        member = self.roster.members.get(name)
        due = inf if member is None else member.yields_at
        return None if due == inf else max(0.0, due - self._clock())

    # -- deciding -----------------------------------------------------------------------

    async def keep(self) -> None:
        """Decide again at each deadline of the roster, and at the latest after `LONGEST_REST_S`
        seconds. Never returns."""
        while True:
            self.settle()
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rest_s()):
                    await self._news.wait()

    def settle(self) -> None:
        """Carry out the roster's orders until there are none, then call `changed`.

        A call from inside another one returns immediately: the outer call carries out the orders
        that follow.
        """
        self._news.set()
        if self._settling:
            return
        self._settling = True
        try:
            self._show()  # states that end at once as well
            while orders := self.roster.decide(self._clock()):
                for order in orders:
                    self._obey(order)
                self._show()
            self._show()  # some end without an order
        finally:
            self._settling = False
        self._changed()

    def _rest_s(self) -> float:
        now = self._clock()
        deadline = self.roster.next_deadline(now)
        return LONGEST_REST_S if deadline is None else min(LONGEST_REST_S, max(0.0, deadline - now))

    def _obey(self, order: RosterOrder) -> None:
        name = order.tenant
        match order.verb:
            case RosterVerb.REFUSE:
                for _ in range(order.requests):
                    self._waiting[name].popleft().refuse(order.seconds, order.why)
            case RosterVerb.START:
                self._acts.start(name)
            case RosterVerb.STOP:
                self._acts.stop_one(name, order.why)
            case RosterVerb.SLEEP:
                self._acts.sleep(name)
            case RosterVerb.WAKE:
                self._acts.wake(name)
            case RosterVerb.DRAIN:
                pass  # nothing is passed on to one that drains

    def _show(self) -> None:
        """Tell `acts` of new states, and forget tenants that are gone."""
        now = self._clock()
        for name in self._waiting.keys() - self.roster.members.keys():
            self._forget(name)
        for name, member in self.roster.members.items():
            before = self._shown.get(name)
            if before is member.state:
                continue
            self._shown[name] = member.state
            self._acts.shows(name, member.state)
            if before is LifeState.WAKING and member.state is LifeState.READY:
                self.wakes[name].add(now - self._begun[name])
            self._tell(name, member.state, now)

    def _forget(self, name: str) -> None:
        del self._waiting[name]
        for ticket in self._ending.pop(name, ()):
            ticket.refuse(0.0)
        self._next_life(name)
        for books in (self._shown, self._begun, self.wakes, self.starts):
            books.pop(name, None)
        self._acts.gone(name)

    def _tell(self, name: str, state: LifeState, now: float) -> None:
        """Log that a tenant has woken or sleeps, with the seconds that this took, or has
        stopped."""
        begun = self._begun.pop(name, None)
        if state in (LifeState.WAKING, LifeState.DRAINING):
            self._begun[name] = now
        elif state is LifeState.READY and begun is not None:
            self._say(f"{name}: awake in {now - begun:.2f} s")
        elif state is LifeState.SLEEPING and begun is not None:
            self._say(f"{name}: asleep after {now - begun:.2f} s")
        elif state is LifeState.STOPPED and begun is not None:
            self._say(f"{name}: stopped")
