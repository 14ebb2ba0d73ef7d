"""Memory of one device for more models than fit: a roster decides which are awake, an arbiter
divides.

A sleeping engine holds its fixed bytes and has no turn. An engine that wakes joins the arbiter with
all its layers given away, is allotted the memory that the others leave, and begins when its weights
have been copied over the link, one model after the other. Streamed layers do not slow that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from mirage.control.arbiter import Arbiter
from mirage.control.placement.placed import Stand
from mirage.control.roster.member import DrainGoal
from mirage.control.roster.orders import RosterOrder, RosterVerb
from mirage.control.roster.roster import Roster
from mirage.control.roster.states import GONE, Life, LifeEvent, LifeState, WeightsPlace
from mirage.protocol import Report, Turn
from mirage.simulate.engine import Engine
from mirage.simulate.lanes import Lane
from mirage.simulate.roofline import PS
from mirage.simulate.world import At, SimulatedDomain, ToEngine

ALL = 1 << 62
"""Number of bytes beyond any KV memory: an order to spill as many spills all."""


class RosteredDomain(SimulatedDomain):
    """Memory of one device with a roster. `later` calls back at a time in picoseconds; `link`
    carries returning weights.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        engines: Iterable[Engine],
        tell: Callable[[Engine, ToEngine], None],
        *,
        roster: Roster,
        link: Lane,
        later: Callable[[int, At], None],
    ) -> None:
        super().__init__(arbiter, engines, tell)
        self.roster, self._link, self._later = roster, link, later
        self._joined: set[str] = set()
        """Tenants whose memory the arbiter divides."""
        self._loading: dict[str, LifeEvent] = {}
        """Tenants that have joined and wait for their first allotment, with the event that follows
        it.
        """
        self._up: set[str] = set()
        """Tenants that have started without memory, and wait for the bytes that they hold
        asleep.
        """
        self._leaving: dict[str, DrainGoal] = {}
        self._known = dict.fromkeys(self.engines, 0)
        """Number of requests of each tenant that the roster knows of."""
        self._past = dict.fromkeys(self.engines, 0)
        """Revision of each tenant's allotment when it last fell asleep or stopped: reports up to
        that revision may still be under way."""

    def start(self, now: int) -> None:
        for name, engine in self.engines.items():
            if self.roster.members[name].state is LifeState.READY:
                self._join(name, now)
            else:
                engine.turn.told(Turn(False))
                self._rest(name)
        self.decide(now)

    def check(self, now_s: float) -> None:
        self.roster.check()
        self.arbiter.controller.check(now_s)
        held = sum(self._held(name) for name in self.engines)
        assert held <= self.roster.device_bytes, f"{held} bytes are held"

    def _held(self, name: str) -> int:
        if name in self._joined:
            return self.engines[name].holding.held_bytes
        return self.arbiter.controller.reserved_bytes(name)

    # -- what a placement wants ----------------------------------------------------------

    def wish(self, name: str, wish: LifeState, now: int) -> None:
        """Have a tenant become ready, sleep or stop. A stopped one leaves no weights in host
        memory.
        """
        self.roster.kept(name, kept=wish is not LifeState.STOPPED)
        self.roster.wished(name, wish, now / PS)
        self.decide(now)

    def is_ready(self, name: str, since: int) -> bool:
        """True if the tenant is ready, or became ready after the time `since` (picoseconds)."""
        member = self.roster.members[name]
        return member.state is LifeState.READY or member.ready_at * PS > since

    def is_gone(self, name: str) -> bool:
        """True if the tenant has no process."""
        return self.roster.members[name].state in GONE

    # -- events -------------------------------------------------------------------------

    def _take(self, name: str, report: Report, now: int) -> None:
        self._count(name, report.running + report.waiting, now)
        stale = 0 < report.revision <= self._past[name]
        if name in self._joined and not stale:
            super()._take(name, report, now)
        if report.holds_turn or report.running:
            pass
        elif name in self._leaving:
            self._leave(name, self._leaving.pop(name), now)
        else:
            self.roster.drained(name, now / PS)
        if name in self._loading and report.revision and not stale:
            self._load(name, self._loading.pop(name), now)

    def _count(self, name: str, requests: int, now: int) -> None:
        """Tell the roster of requests that arrived or ended, by the number of requests in a
        report.
        """
        more = requests - self._known[name]
        self._known[name] = requests
        for _ in range(more):
            self.roster.asked(name, now / PS)
        for _ in range(-more):
            self.roster.ended(name, now / PS)

    def _due(self, now_s: float) -> float | None:
        times = super()._due(now_s), self.roster.next_deadline(now_s)
        return min((time for time in times if time is not None), default=None)

    # -- orders -------------------------------------------------------------------------

    def _send(self, now: int) -> None:
        for name in sorted(self._up):
            self._sleep_first(name, now)
        for order in self.roster.decide(now / PS):
            self._obey(order, now)
        super()._send(now)

    def _obey(self, order: RosterOrder, now: int) -> None:
        name, verb = order.tenant, order.verb
        engine = self.engines[name]
        if verb is RosterVerb.DRAIN:
            self._tell(engine, Turn(False, drain=True))
        elif verb in (RosterVerb.SLEEP, RosterVerb.STOP):
            self._leaving[name] = self.roster.members[name].goal
            self._tell(engine, Turn(False, spill_bytes=ALL))
        elif verb is RosterVerb.WAKE:
            self._come(name, LifeEvent.WOKE, now)
        elif verb is RosterVerb.START:
            times, own = self.roster.members[name].times, self.roster.members[name].own
            if own.hollow:
                self.arbiter.controller.expects(name, own.asleep)
            begins = now + _ps(times.warm_s - times.wake_s)
            self._later(max(now, begins), partial(self._come_later, name))

    # -- going --------------------------------------------------------------------------

    def _leave(self, name: str, goal: DrainGoal, now: int) -> None:
        """Begin to sleep or stop. No request runs, and all KV memory has been given up."""
        times = self.roster.members[name].times
        takes_s = times.sleep_s if goal is DrainGoal.SLEEP else times.stop_s
        self._later(now + _ps(takes_s), partial(self._left, name, goal))

    def _left(self, name: str, goal: DrainGoal, now: int) -> None:
        sleeps = goal is DrainGoal.SLEEP
        self._joined.discard(name)
        self.roster.heard(name, LifeEvent.SLEPT if sleeps else LifeEvent.ENDED, now / PS)
        self.arbiter.lost(name, now / PS)
        self._rest(name)
        waits = self._known[name]
        member = self.roster.members[name]
        self._known[name] = len(member.waiting) + member.inside
        self._count(name, waits, now)
        self.decide(now)

    def _rest(self, name: str) -> None:
        """Set a tenant's memory to the bytes that it keeps asleep, or to none if it has no
        process.
        """
        member, holding = self.roster.members[name], self.engines[name].holding
        self._past[name] = max(self._past[name], holding.revision)
        holding.begin_empty()
        self.arbiter.controller.slept(name, 0 if member.state in GONE else member.own.asleep)

    # -- coming -------------------------------------------------------------------------

    def _come_later(self, name: str, now: int) -> None:
        """Go on with the start of a tenant whose process is up now."""
        member = self.roster.members[name]
        if member.own.hollow:
            self._up.add(name)
        else:
            self._come(name, LifeEvent.STARTED, now)
        self.decide(now)

    def _sleep_first(self, name: str, now: int) -> None:
        """Let a tenant that started without memory sleep, once the bytes that it holds asleep are
        free.
        """
        if self.arbiter.controller.free_bytes >= self.roster.members[name].own.asleep:
            self._up.discard(name)
            self.roster.heard(name, LifeEvent.SLEPT, now / PS)
            self._rest(name)

    def _come(self, name: str, event: LifeEvent, now: int) -> None:
        self._loading[name] = event
        self._join(name, now)

    def _join(self, name: str, now: int) -> None:
        holding = self.engines[name].holding
        controller = self.arbiter.controller
        held = controller.reserved_bytes(name) if name in self._loading else holding.held_bytes
        controller.joined(name, holding.shape, held, now / PS, lean=True)
        self._joined.add(name)

    def _load(self, name: str, event: LifeEvent, now: int) -> None:
        member = self.roster.members[name]
        loaded = self._link.copy(now, member.own.loaded)
        beside = member.times.wake_s - self._link.takes(member.own.loaded) / PS
        self._later(loaded + _ps(max(0.0, beside)), partial(self._ready, name, event))

    def _ready(self, name: str, event: LifeEvent, now: int) -> None:
        self._tell(self.engines[name], Turn(True))
        self.roster.heard(name, event, now / PS)
        self.decide(now)


def _ps(seconds: float) -> int:
    return round(seconds * PS)


def begin(roster: Roster, popular: Iterable[str], now: float = 0.0) -> None:
    """Set the first states at `now` seconds: the most popular tenants are awake as far as they fit,
    the next asleep, the others stopped.

    The weights of tenants that are not awake are in host memory.
    """
    most = roster.rules.asleep_part * roster.device_bytes if roster.rules.sleeps else 0
    left, awake = roster.device_bytes, []
    names = list(popular)
    sleepers = _first(names, {n: roster.members[n].own.asleep for n in names}, int(most))
    left -= sum(roster.members[name].own.asleep for name in sleepers)
    for name in names:
        own = roster.members[name].own
        more = own.awake - (own.asleep if name in sleepers else 0)
        if more <= left:
            awake.append(name)
            left -= more
    for name in names:
        state = LifeState.SLEEPING if name in sleepers else LifeState.STOPPED
        state = LifeState.READY if name in awake else state
        place = WeightsPlace.DEVICE if name in awake else WeightsPlace.HOST
        roster.adopted(name, Life(state, place), now)


def begin_placed(roster: Roster, stands: Mapping[str, Stand | None], now: float = 0.0) -> None:
    """Set the first states by `stands`, at `now` seconds.

    Tenants that should be awake are so as far as they fit, in order; the others that have a stand
    sleep. Those whose stand is None are stopped, with their weights on disk.
    """
    left = roster.device_bytes
    left -= sum(roster.members[name].own.asleep for name, stand in stands.items() if stand)
    for name, stand in sorted(stands.items(), key=lambda each: each[1] is not Stand.AWAKE):
        own = roster.members[name].own
        if stand is None:
            roster.kept(name, kept=False)
            life = Life(LifeState.STOPPED, WeightsPlace.DISK, keeps=False)
        elif stand is Stand.AWAKE and own.yields <= left:
            left -= own.yields
            life = Life(LifeState.READY, WeightsPlace.DEVICE)
        else:
            life = Life(LifeState.SLEEPING, WeightsPlace.HOST)
        roster.adopted(name, life, now)


def _first(names: Iterable[str], nbytes: Mapping[str, int], most: int) -> set[str]:
    """Names, in order, whose bytes fit into `most` together. Names that do not fit are skipped."""
    chosen: set[str] = set()
    for name in names if most else ():
        if nbytes[name] <= most:
            chosen.add(name)
            most -= nbytes[name]
    return chosen
