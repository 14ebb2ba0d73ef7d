"""Several devices and the router before them, in one simulated time.

Devices know nothing of each other, so each runs by itself. Only a routing decision has to know
what is under way at the replicas of one model: their devices are brought up to its time, and no
others. A model with one replica needs no decision, and its engine is told its requests beforehand.

A request that had no token yet when its device was lost is sent to another replica, as the router
of `mirage serve` would; one whose answer had begun is lost.
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
"""No device is further ahead of another: what a trace has for others is held meanwhile."""


class LossCause(StrEnum):
    """Cause for which a request is not answered."""

    DEVICE = "device_lost"
    """Its device was lost while it was there, and its answer had begun or nobody else had it."""
    NO_REPLICA = "no_replica"
    """It came when no replica of its model was there."""


class FleetObserver:
    """Sees a fleet run, to override. It changes nothing."""

    def of(self, device: PlacedDevice, world: World) -> DeviceObserver:
        """Observer of a device's world, which is new."""
        return DeviceObserver(device, world)

    def lost(self, tenant: str, request: SimulatedRequest, cause: LossCause) -> None:
        """A request will not be answered."""


class Fleet:
    """Devices with their engines, a router, and failures. Times in picoseconds."""

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
        """`arrivals` are the requests of each tenant, instead of those that are drawn.

        The route is that of `mirage serve` if left out. `past` are requests before the run, with
        negative arrivals, which a placement that moves knows of.
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
        """Moves models over time; None if each stays where it is."""
        self._changes = _changes(setup)
        routed = [tenant for tenant in arrivals if tenant not in self._feeds]
        self._arrivals = merge(*(_keyed(i, t, arrivals[t]) for i, t in enumerate(routed)))
        self._next = next(self._arrivals, None)
        self._together = TOGETHER_PS
        self.lost: dict[str, Counter[LossCause]] = {t: Counter() for t in setup.placement}
        """Requests of each tenant that were not answered."""
        self.retried: Counter[str] = Counter()
        """Requests of each tenant that were sent to another replica when their device was lost."""
        for device in self.devices.values():
            device.begin(0, NEVER)

    @property
    def engines(self) -> list[Engine]:
        """All of them, those of lost devices too."""
        return [engine for device in self.devices.values() for engine in device.engines]

    def run(self, until: int = NEVER) -> None:
        """Until all requests are answered or lost, or `until` picoseconds."""
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
        """Time of the next change, routing decision or meeting; once nobody comes, no move."""
        change = self._changes[0][0] if self._changes else NEVER
        if self._next is None:
            return min(change, self._together)
        tick = NEVER if self.mover is None else self.mover.next_time
        return min(change, self._next[0], self._together, tick)

    def _meet(self, now: int) -> None:
        """All devices are brought up to now; again later if requests are left to be told."""
        for device in self.devices.values():
            device.advance(now)
        self._refuse(self._feeds, now)
        left = any(feed.next_arrival < NEVER for feed in self._feeds.values())
        self._together = now + TOGETHER_PS if left else NEVER

    # -- the router ---------------------------------------------------------------------

    def _send(self, tenant: str, request: SimulatedRequest, now: int) -> bool:
        """To one of the replicas that are there; False if there is none."""
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
        """Requests that came while the only replica of their model was away."""
        for tenant in tenants:
            if tenant in self._feeds and self._replicas[tenant][0].world is None:
                for request in self._feeds[tenant].before(until):
                    self._lose(tenant, request, LossCause.NO_REPLICA)

    def _lose(self, tenant: str, request: SimulatedRequest, cause: LossCause) -> None:
        self.lost[tenant][cause] += 1
        self._observer.lost(tenant, request, cause)


def _anew(request: SimulatedRequest) -> SimulatedRequest:
    """The request as it was when it came."""
    asked = SimulatedRequest(request.number, request.arrival, request.prompt, request.output)
    asked.prefix = request.prefix
    return asked


def _keyed(
    place: int, tenant: str, requests: Iterator[SimulatedRequest]
) -> Iterator[tuple[int, int, int, str, SimulatedRequest]]:
    """Requests behind what they are merged by, which no two have in common."""
    for request in requests:
        yield request.arrival, place, request.number, tenant, request


def _changes(setup: FleetSetup) -> deque[tuple[int, bool, str]]:
    """Time, whether it is back then, and name of each device that is lost or back, in order."""
    changes = []
    for name in setup.devices:
        for outage in setup.outages[name]:
            changes.append((round(outage.at_s * PS), False, name))
            if outage.back_s is not None:
                changes.append((round(outage.back_s * PS), True, name))
    return deque(sorted(changes, key=lambda change: (change[0], not change[1], change[2])))
