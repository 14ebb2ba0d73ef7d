"""Several devices and the router before them, in one simulated time.

Devices do not affect each other, so each is simulated by itself. Only a routing decision needs the
requests in flight at the replicas of one model: their devices are simulated up to that time, and no
others. A model with one replica needs no decision, and its engine gets its requests beforehand.

A request without a token when its device is lost is sent to another replica, as by the router of
`mirage serve`; one whose answer had begun is lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from heapq import merge

from mirage.simulate import workload
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.fleet.device import DeviceObserver, PlacedDevice
from mirage.simulate.fleet.feed import Feed
from mirage.simulate.fleet.moving import FleetMover
from mirage.simulate.fleet.routes import ReplicaLoad, Route, ServedRoutes
from mirage.simulate.fleet.setup import FleetSetup
from mirage.simulate.roofline import NEVER, PS
from mirage.simulate.variants import Variant
from mirage.simulate.world import World

TOGETHER_PS = 60 * PS
"""Picoseconds by which one device may be ahead of another, since rows of a trace are held in memory
until their device comes to them.
"""


class LossCause(StrEnum):
    """Reason why a request is not answered."""

    DEVICE = "device_lost"
    """The request's device was lost while the request was there, and its answer had begun or no
    other replica was there."""
    NO_REPLICA = "no_replica"
    """The request arrived while no replica of its model was there."""


class FleetObserver:
    """Observer of the run of a fleet, which it does not change. Subclasses override its methods."""

    def of(self, device: PlacedDevice, world: World) -> DeviceObserver:
        """Return an observer for a device whose simulation (`world`) begins anew."""
        return DeviceObserver(device, world)

    def lost(self, tenant: str, request: SimulatedRequest, cause: LossCause) -> None:
        """Note that a request was lost for `cause` and will not be answered."""


class Fleet:
    """Several simulated devices with their engines, the router before them, and failures of
    devices. Times are picoseconds."""

    def __init__(
        self,
        setup: FleetSetup,
        variant: Variant,
        seed: int,
        *,
        skipping: bool = True,
        route: Route | None = None,
        observer: FleetObserver | None = None,
        arrivals: Mapping[str, Iterator[SimulatedRequest]] | None = None,
        past: Mapping[str, Iterable[SimulatedRequest]] | None = None,
    ) -> None:
        """`arrivals` are the requests of each tenant, instead of those that the experiment draws.

        `route` is by default that of `mirage serve`. `past` are requests before the run, with
        negative arrivals, by which a placement that moves knows the load.
        """
        self._observer, self._route = observer or FleetObserver(), route or ServedRoutes()
        arrivals = workload.requests(setup, seed) if arrivals is None else arrivals
        moving = setup.experiment.moving
        alone = {t for t, on in setup.placement.items() if len(on) == 1 and moving is None}
        self._feeds = {t: Feed(arrivals[t]) for t in setup.placement if t in alone}
        self.devices = {
            name: PlacedDevice(
                name,
                of,
                variant,
                seed,
                self._feeds,
                setup.outages[name],
                skipping,
                self._observer.of,
            )
            for name, of in setup.devices.items()
        }
        self._replicas = {t: [self.devices[d] for d in on] for t, on in setup.placement.items()}
        self.mover = None if moving is None else FleetMover(setup, variant, self.devices, past)
        """Mover of models between devices over time; None if each model stays."""
        self._changes = _changes(setup)
        routed = [tenant for tenant in arrivals if tenant not in self._feeds]
        self._arrivals = merge(*(_keyed(i, t, arrivals[t]) for i, t in enumerate(routed)))
        self._next = next(self._arrivals, None)
        self._together = TOGETHER_PS
        self.lost: dict[str, Counter[LossCause]] = {t: Counter() for t in setup.placement}
        """Lost requests of each tenant, by cause."""
        self.retried: Counter[str] = Counter()
        """Requests of each tenant that were sent to another replica after their device was lost."""
        for device in self.devices.values():
            device.begin(0, NEVER)

    @property
    def engines(self) -> list[Engine]:
        """Engines of all devices, including those of earlier lives."""
        return [engine for device in self.devices.values() for engine in device.engines]

    def run(self, until: int = NEVER) -> None:
        """Simulate until all requests are answered or lost, or until the time `until`."""
        for device in self.devices.values():
            device.measure(until)
        while (time := self._next_time()) < until:
            if self._changes and self._changes[0][0] == time:
                self._change(*self._changes.popleft()[1:], time, until)
            elif self.mover is not None and self.mover.next_time == time:
                self.mover.tick(time)
            elif self._next is not None and self._next[0] == time:
                _, _, _, tenant, request = self._next
                self._next = next(self._arrivals, None)
                if self.mover is not None:
                    self.mover.came(tenant, request)
                if not self._send(tenant, request, time):
                    self._lose(tenant, request, LossCause.NO_REPLICA)
            else:
                self._meet(time)
        for device in self.devices.values():
            device.run(until)
        self._refuse(self._feeds, until)

    def check(self) -> None:
        """Raises `LedgerError` or `AssertionError` if memory of a device is over-committed."""
        for device in self.devices.values():
            if device.world is not None:
                device.world.check()

    def _next_time(self) -> int:
        """Time of the next event that concerns several devices: a loss or return of a device, a
        routing decision, a time up to which all devices are simulated, or a move. There are no
        moves after the last arrival.
        """
        change = self._changes[0][0] if self._changes else NEVER
        if self._next is None:
            return min(change, self._together)
        tick = NEVER if self.mover is None else self.mover.next_time
        return min(change, self._next[0], self._together, tick)

    def _meet(self, now: int) -> None:
        """Simulate all devices up to `now`; plan the next such time if feeds have requests left."""
        for device in self.devices.values():
            device.advance(now)
        self._refuse(self._feeds, now)
        left = any(feed.next_arrival < NEVER for feed in self._feeds.values())
        self._together = now + TOGETHER_PS if left else NEVER

    # -- the router ---------------------------------------------------------------------

    def _send(self, tenant: str, request: SimulatedRequest, now: int) -> bool:
        """Send a request to a replica whose device is there; False if there is none."""
        replicas = self._replicas[tenant] if self.mover is None else self.mover.open(tenant)
        there = [device for device in replicas if device.world is not None]
        if not there:
            return False
        for device in there:
            device.advance(now)
        loads = [ReplicaLoad(device.name, device.in_flight[tenant]) for device in there]
        there[self._route(request, loads)].take(tenant, request, now)
        return True

    # -- what fails ---------------------------------------------------------------------

    def _change(self, back: bool, name: str, now: int, until: int) -> None:
        device = self.devices[name]
        if back:
            self._refuse(device.in_flight, now)
            device.begin(now, until)
            if self.mover is not None:
                self.mover.back(now)
            return
        device.advance(now)
        lost = device.lose()
        if self.mover is not None:
            self.mover.lost(name, now)
        for tenant, request in lost:
            if request.first < 0 and self._send(tenant, _anew(request), now):
                self.retried[tenant] += 1
            else:
                self._lose(tenant, request, LossCause.DEVICE)

    def _refuse(self, tenants: Iterable[str], until: int) -> None:
        """Lose the requests that arrive before `until` at a device which is away and has their only
        replica.
        """
        for tenant in tenants:
            if tenant in self._feeds and self._replicas[tenant][0].world is None:
                for request in self._feeds[tenant].before(until):
                    self._lose(tenant, request, LossCause.NO_REPLICA)

    def _lose(self, tenant: str, request: SimulatedRequest, cause: LossCause) -> None:
        self.lost[tenant][cause] += 1
        self._observer.lost(tenant, request, cause)


def _anew(request: SimulatedRequest) -> SimulatedRequest:
    """A copy of the request with nothing computed yet; it keeps its number, lengths, time of
    arrival and content (`prefix`).
    """
    asked = SimulatedRequest(request.number, request.arrival, request.prompt, request.output)
    asked.prefix = request.prefix
    return asked


def _keyed(
    place: int, tenant: str, requests: Iterator[SimulatedRequest]
) -> Iterator[tuple[int, int, int, str, SimulatedRequest]]:
    """Requests with a key in front by which requests of all tenants are merged; no two keys are
    equal.
    """
    for request in requests:
        yield request.arrival, place, request.number, tenant, request


def _changes(setup: FleetSetup) -> deque[tuple[int, bool, str]]:
    """Losses and returns of devices, in order: time in picoseconds, True for a return, and name of
    the device.
    """
    changes = []
    for name in setup.devices:
        for outage in setup.outages[name]:
            changes.append((round(outage.at_s * PS), False, name))
            if outage.back_s is not None:
                changes.append((round(outage.back_s * PS), True, name))
    return deque(sorted(changes, key=lambda change: (change[0], not change[1], change[2])))
