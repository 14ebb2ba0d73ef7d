"""Roster of a device that has no room for all tenants, with a clock, engines and requests.

The roster decides; this module carries its orders out and tells it what came of them. Everything
happens on the event loop, and after each event all that follows from it is done at once.
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
from mirage.serve.device_health import DeviceHealth
from mirage.serve.roster.ticket import NotInTime, Ticket, TicketState

LONGEST_REST_S = 5.0
"""Between two looks at the clock, whatever was heard."""
LEAST_S = 1.0
"""Least seconds until a device that is being asked has answered."""
WAKE_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
START_BOUNDS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


class Acts(Protocol):
    """Engines of the tenants, as the roster's orders see them."""

    def start(self, name: str) -> None:
        """Start the tenant's engine, as soon as others have given its share back."""

    def stop_one(self, name: str, why: str) -> None:
        """End its engine, or do not start it; for a reason that is told, if there is one."""

    def sleep(self, name: str) -> None:
        """The tenant's engine gives all that it can."""

    def wake(self, name: str) -> None:
        """The tenant's share is its own again, as soon as others have given it back."""

    def shows(self, name: str, state: LifeState) -> None:
        """The tenant is in another state."""

    def gone(self, name: str) -> None:
        """A tenant that was removed has no engine any more."""


class Attendance:
    """The roster of one device, carried out. Run `keep`. Times are seconds of `clock`."""

    def __init__(
        self,
        roster: Roster,
        acts: Acts,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
        device: DeviceHealth | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` hears whenever `passes` and states may have."""
        self.roster = roster
        self._device = device or DeviceHealth()
        self._changed = changed
        self._acts, self._say, self._clock = acts, say, clock
        self._waiting: dict[str, deque[Ticket]] = {name: deque() for name in roster.members}
        self._shown: dict[str, LifeState] = {}
        self.wakes: defaultdict[str, TimeCounts] = defaultdict(partial(TimeCounts, WAKE_BOUNDS))
        """Times from sleep to ready, by tenant."""
        self.starts: defaultdict[str, TimeCounts] = defaultdict(partial(TimeCounts, START_BOUNDS))
        """Times in which engines started, by tenant."""
        self._begun: dict[str, float] = {}
        """Time at which each tenant was ordered to come, or to sleep."""
        self._lives: dict[str, int] = {}
        """Engines of each tenant, and of earlier ones of its name, that have ended."""
        self._counted: dict[str, int] = {}
        """Requests of each tenant that the router passed on by itself, and that run."""
        self._ending: dict[str, list[Ticket]] = {}
        """Requests that came while an engine was about to end; the roster does not know them."""
        self._news = asyncio.Event()
        self._settling = False

    # -- tenants ------------------------------------------------------------------------

    def declares(self, spec: TenantSpec, own: StateBytes, times: SwitchTimes) -> None:
        """A tenant is there, or is declared anew: see `Roster.declares`. `settle` follows."""
        self.roster.declares(spec, own, times, self._clock())
        self._waiting.setdefault(spec.name, deque())

    def remove(self, name: str, drain_s: float | None = None) -> None:
        """A tenant is declared no more; `gone` follows. Raises `NoSuchMemberError`."""
        self.roster.wished(name, LifeState.STOPPED, self._clock(), drain_s)
        self.roster.removed(name)
        self.settle()

    # -- requests -----------------------------------------------------------------------

    def ask(self, name: str) -> Ticket:
        """A request for a tenant comes. Raises `NotInTime`."""
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
        """True if the router may pass on a request for a tenant without asking."""
        member = self.roster.members.get(name)
        if member is None:
            return True  # it was refused, and has no engine
        ready = member.state is LifeState.READY and not member.removed
        return ready and name not in self._ending and not self._device.reason

    def life(self, name: str) -> int:
        """Number of the tenant's engine; an earlier one's requests have ended with it."""
        return self._lives.get(name, 0)

    def counted(self, name: str, life: int, running: int) -> None:
        """Note requests that run, which the router passed on by itself to engine number `life`."""
        if life == self.life(name):
            before = self._counted.get(name, 0)
            self._counted[name] = running
            self.roster.counted(name, running - before, self._clock())
            self.settle()

    def queued(self) -> dict[str, int]:
        """Requests that wait for each tenant to be ready."""
        return {
            name: len(waiting) + len(self._ending.get(name, ()))
            for name, waiting in self._waiting.items()
        }

    @property
    def unconfirmed(self) -> list[str]:
        """Tenants that drain, and of which the router may not know that."""
        members = self.roster.members.values()
        return [m.name for m in members if m.state is LifeState.DRAINING and m.unconfirmed]

    def confirmed(self, name: str) -> None:
        """The router passes nothing on to a tenant without asking, and `counted` what it had."""
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
        """Seconds until a device that has failed is asked again; 0 of one that is well."""
        return max(LEAST_S, self._device.wait_s) if self._device.reason else 0.0

    def device_failed(self) -> None:
        """Refuse waiting requests, and new ones until the device is healthy."""
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
        """An engine serves, so long after it was started: the next start will take as long."""
        member = self.roster.members[name]
        cold_s = max(seconds, member.times.wake_s)
        member.times = replace(member.times, warm_s=cold_s, cold_s=cold_s)
        self.starts[name].add(seconds)
        self.heard(name, LifeEvent.STARTED)

    def ends(self, name: str) -> None:
        """An engine is about to end: `ended` follows. Requests that come meanwhile wait for it."""
        if name in self.roster.members:
            self._ending.setdefault(name, [])
            self._changed()

    def ended(self, name: str, retry_s: float, *, failed: bool) -> None:
        """An engine has ended, or did not start; it may start again in `retry_s` seconds.

        With `failed` it is given up for now, and `retry_s` is a long rest.
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
        """The requests of its engine have ended."""
        self._lives[name] = self.life(name) + 1
        self._counted.pop(name, None)

    @staticmethod
    def _is_told(member: RosterMember, goal: DrainGoal) -> bool:
        return member.state is LifeState.DRAINING and member.told and member.goal is goal

    def heard(self, name: str, event: LifeEvent, retry_s: float = 0.0) -> None:
        """An event of an engine. One that its state does not have came too late to matter."""
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
        """The memory of an engine: whether it sleeps now, or has woken."""
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
        """True if it has obeyed a newer allotment, and has memory for a request."""
        least = self.roster.members[name].own.least_extents
        return not report.asleep and report.kv_usable_extents >= least

    # -- operators ----------------------------------------------------------------------

    def wish(self, name: str, state: LifeState, drain_s: float | None = None) -> None:
        """An operator wants a tenant ready, asleep or stopped. Raises `NoSuchMemberError`.

        What runs has `drain_s` to end, else the rules' time.
        """
        self.roster.wished(name, state, self._clock(), drain_s)
        self.settle()

    def restart(self, name: str, drain_s: float | None = None) -> None:
        """An operator wants a tenant to stop, and to come again. Raises `NoSuchMemberError`."""
        self.roster.restarted(name, self._clock(), drain_s)
        self.settle()

    def wake_s(self, name: str) -> float:
        """Seconds that a tenant took to wake, or is predicted to; 0 of one that is unknown."""
        member = self.roster.members.get(name)
        return 0.0 if member is None else member.times.wake_s

    def ready_s(self, name: str) -> float:
        """Seconds until a tenant would be ready if it were asked for now, predicted."""
        return self.roster.predicted_s(name, self._clock())

    def yields_s(self, name: str) -> float | None:
        """Seconds until its own times put it to sleep or stop it; None if they do not."""
        member = self.roster.members.get(name)
        due = inf if member is None else member.yields_at
        return None if due == inf else max(0.0, due - self._clock())

    # -- deciding -----------------------------------------------------------------------

    async def keep(self) -> None:
        """Decide again whenever time alone changes what is right. Never returns."""
        while True:
            self.settle()
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rest_s()):
                    await self._news.wait()

    def settle(self) -> None:
        """Do what follows from what has happened. What happens meanwhile is seen to after it."""
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
        """Tell of new states."""
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
        """Say it, and how long it took where that is worth knowing."""
        begun = self._begun.pop(name, None)
        if state in (LifeState.WAKING, LifeState.DRAINING):
            self._begun[name] = now
        elif state is LifeState.READY and begun is not None:
            self._say(f"{name}: awake in {now - begun:.2f} s")
        elif state is LifeState.SLEEPING and begun is not None:
            self._say(f"{name}: asleep after {now - begun:.2f} s")
        elif state is LifeState.STOPPED and begun is not None:
            self._say(f"{name}: stopped")
