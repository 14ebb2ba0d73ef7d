"""A placement that changes over time: decided by `control/placement`, carried out step by step.

Decisions use the last complete windows of load. Steps of a decision follow each other. A start
reads the parameters from the machine's disk, one start after the other, and begins once it has
room; a wake waits for the link. A drain closes the route and waits for all running requests; a
drain before a sleep leaves the route open, and the device's roster drains the model. No decision is
made before the steps of the last one are over. A lost device takes its processes along: steps that
were to bring a model there are dropped, and a new decision is made immediately.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from mirage.control.placement.books import fits
from mirage.control.placement.deciding import Placer
from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.judging import PlacementJudge
from mirage.control.placement.placed import DevicePlacement, ReplicaPlace, Stand
from mirage.control.placement.roofline_judge import RooflineJudge
from mirage.control.placement.rules import PlacementPast
from mirage.control.placement.steps import MoveStep, MoveVerb
from mirage.control.roster.states import LifeState
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.fleet.device import PlacedDevice
from mirage.simulate.fleet.facts import FleetFacts
from mirage.simulate.fleet.judging import (
    LatencyLimits,
    SimulatedJudge,
    SimulatedVerdicts,
    setup_kinds,
)
from mirage.simulate.fleet.load_log import LoadLog, WindowRows
from mirage.simulate.fleet.setup import FleetSetup
from mirage.simulate.lanes import Lane
from mirage.simulate.roofline import NEVER, PS
from mirage.simulate.variants import Variant

LOOK_PS = PS
"""Picoseconds between two checks of a step that is under way."""
COMES = (MoveVerb.START, MoveVerb.WAKE)


class MoveNote(NamedTuple):
    """A decision with at least one step: its time in seconds, its reason and its steps."""

    at_s: float
    why: str
    steps: tuple[MoveStep, ...]


class FleetMover:
    """Mover of models between the devices of a fleet. Times are picoseconds."""

    def __init__(
        self,
        setup: FleetSetup,
        variant: Variant,
        devices: Mapping[str, PlacedDevice],
        past: Mapping[str, Iterable[SimulatedRequest]] | None,
    ) -> None:
        """`past` are requests before the run, whose arrivals are negative."""
        moving = setup.experiment.moving
        assert moving is not None, "an experiment without moving moves nothing"
        self._moving, self._devices = moving, devices
        self._facts, self._placer = FleetFacts(setup, moving), Placer(moving.rules)
        limits = LatencyLimits.of_seconds(moving.ttft_s, moving.tpot_s)
        self._verdicts = SimulatedVerdicts(setup_kinds(setup.devices, variant), limits)
        self._log = LoadLog(round(moving.window_s * PS), moving.window_s, moving.windows)
        for tenant, requests in (past or {}).items():
            for request in requests:
                self._log.came(tenant, request)
        self.placement = DevicePlacement.of_names(setup.placement)
        """Places of all processes, including those that drain."""
        self._open = {tenant: list(places) for tenant, places in setup.placement.items()}
        self._disk = Lane(moving.disk_gb_s * 1e9)
        self._past = PlacementPast()
        self._known = self._facts.of(devices.keys(), ())
        self._left: deque[MoveStep] = deque()
        """Steps of the present decision that are not over."""
        self._under_way: Iterator[None] | None = None
        self._kept: set[str] = set()
        """Models that keep their placement: their remaining steps of the present decision are
        dropped."""
        self._now = 0
        self._due = 0 if past else round(moving.decide_s * PS)
        """Time of the next decision, if no steps are under way at that time."""
        self.next_time = self._due
        """Time at which `tick` must be called next."""
        self.done: Counter[MoveVerb] = Counter()
        """Number of finished steps, by verb."""
        self.loaded = 0
        """Bytes that starts read from the disk, and that wakes loaded over the link."""
        self.notes: list[MoveNote] = []
        popular = sorted(setup.experiment.tenants, key=lambda tenant: -(tenant.rate or 0))
        for name, device in devices.items():
            there = self.placement.on(name)
            device.stands = {
                t.name: there.get(t.name) for t in popular if t.name in device.setup.models
            }

    # -- the router ---------------------------------------------------------------------

    def came(self, tenant: str, request: SimulatedRequest) -> None:
        """Note that a request has come to the router, as load for later decisions."""
        self._log.came(tenant, request)

    def open(self, tenant: str) -> list[PlacedDevice]:
        """Devices to which requests of a tenant may go, sorted by name: those where it is awake, or
        all of its devices if it is awake on none.
        """
        awake = self.placement.awake(tenant)
        names = [name for name in self._open[tenant] if name in awake] or self._open[tenant]
        return [self._devices[name] for name in sorted(names)]

    # -- what happens -------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Continue the steps under way; if there are none, make a decision if one is due."""
        self._now = now
        self._go_on()
        if self._under_way is None and now >= self._due:
            self._decide()
        self.next_time = self._due if self._under_way is None else now + LOOK_PS

    def lost(self, device: str, now: int) -> None:
        """Note that a device is lost with all its processes, drop the steps that concerned them,
        and set the next decision as `back` does."""
        gone = {place for place in self.placement.places if place.device == device}
        self.placement = DevicePlacement(self.placement.places - gone)
        for place in gone:
            if device in self._open[place.model]:
                self._open[place.model].remove(device)
        self._kept |= {s.model for s in self._left if s.device == device and s.verb in COMES}
        self._kept |= {s.model for s in self._left} & {place.model for place in gone}
        for model in self._kept:
            self._open[model] = list(self.placement.of(model))
        lost = self._devices[device]
        lost.stands = dict.fromkeys(lost.setup.models)
        self.back(now)

    def back(self, now: int) -> None:
        """Set `now` as the time of the next decision, because the set of devices has changed. A
        `tick` makes it, once no step is under way."""
        self._due = self.next_time = now

    # -- decisions ----------------------------------------------------------------------

    def _decide(self) -> None:
        self._due = self._now + round(self._moving.decide_s * PS)
        there = [name for name, device in self._devices.items() if device.world is not None]
        windows = self._log.whole(self._now)
        if not windows or not there:
            return
        self._verdicts.forget(windows[0].number)
        self._known = facts = self._facts.of(there, [window.load for window in windows])
        judge = self._judge(facts, windows)
        decision = self._placer.decide(facts, judge, self.placement, self._past, self._now / PS)
        self._past = decision.past
        if decision.steps:
            self.notes.append(MoveNote(self._now / PS, decision.why, decision.steps))
            self._left, self._kept = deque(decision.steps), set()
            self._under_way = self._carried()
            self._go_on()

    def _judge(self, facts: PlacementFacts, windows: list[WindowRows]) -> PlacementJudge:
        if self._moving.judge == "arithmetic":
            return RooflineJudge(facts)
        return SimulatedJudge(facts, windows, self._verdicts)

    # -- steps --------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._under_way is not None and next(self._under_way, NEVER) is NEVER:
            self._under_way = None

    def _carried(self) -> Iterator[None]:
        """Carry out the steps one after the other; yield whenever a step has to wait for a later
        `tick`.
        """
        while self._left:
            step = self._left[0]
            device = self._devices[step.device]
            life = device.world
            if step.model not in self._kept and life is not None:
                device.advance(self._now)
                for _ in self._done(step, device):
                    yield
                    if device.world is not life or step.model in self._kept:
                        break
                    device.advance(self._now)
                self.done[step.verb] += step.model not in self._kept
            self._left.popleft()

    def _done(self, step: MoveStep, device: PlacedDevice) -> Iterator[None]:
        """Carry out one step, yielding while it has to wait. The device is present whenever this
        continues.
        """
        model, name = step.model, step.device
        if step.verb in COMES:
            place = ReplicaPlace(model, name)
            if not fits(self._known, self.placement.within(self._known), place):
                self._kept.add(model)  # what was to go before it has not
                return
            yield from self._comes(step, device)
            self.placement = self.placement.put(*place)
        elif step.verb is MoveVerb.ROUTE:
            if name not in self._open[model]:
                self._open[model].append(name)
        elif step.verb is MoveVerb.DRAIN:
            if not self._falls_asleep(step):
                self._open[model].remove(name)
                while device.in_flight[model]:
                    yield
        elif step.verb is MoveVerb.SLEEP:
            device.wish(model, LifeState.SLEEPING, self._now)
            self.placement = self.placement.put(model, name, Stand.ASLEEP)
        else:
            device.wish(model, LifeState.STOPPED, self._now)
            while not device.is_gone(model):
                yield
            self.placement = self.placement.out(model, name)

    def _comes(self, step: MoveStep, device: PlacedDevice) -> Iterator[None]:
        nbytes = self._known.model[step.model].parameters
        self.loaded += nbytes
        read_at = self._disk.copy(self._now, nbytes) if step.verb is MoveVerb.START else self._now
        while self._now < read_at:
            yield
        asked_at = self._now
        device.wish(step.model, LifeState.READY, asked_at)
        while not device.is_ready(step.model, asked_at):
            yield

    def _falls_asleep(self, step: MoveStep) -> bool:
        """True for a drain that is followed by a sleep: its route stays open, and the device's
        roster drains the model.
        """
        after = (s.verb for s in self._left if (s.model, s.device) == (step.model, step.device))
        return MoveVerb.SLEEP in after
