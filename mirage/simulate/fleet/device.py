"""One device of several: its world while it is not lost, and its engines over all its lives (a life
lasts until the device is lost)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from mirage.control.placement.placed import Stand
from mirage.control.roster.states import LifeState
from mirage.simulate import build
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Setup
from mirage.simulate.fleet.feed import Feed
from mirage.simulate.fleet.schema import Outage
from mirage.simulate.roofline import NEVER, PS
from mirage.simulate.rostered import RosteredDomain
from mirage.simulate.variants import Variant
from mirage.simulate.world import Observer, World


class DeviceObserver(Observer):
    """Observer of one device's world. Subclasses override its methods, as those of `Observer`."""

    def __init__(self, device: PlacedDevice, world: World) -> None:
        self.device, self.world = device, world

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        """Note that a request has finished and is no longer in flight. A subclass that overrides
        this must call it."""
        self.device.in_flight[engine.name] -= 1


class PlacedDevice:
    """A device with the engines placed on it. Times in picoseconds."""

    def __init__(
        self,
        name: str,
        setup: Setup,
        variant: Variant,
        seed: int,
        feeds: Mapping[str, Feed],
        outages: list[Outage],
        skipping: bool,
        observe: Callable[[PlacedDevice, World], DeviceObserver],
    ) -> None:
        """`feeds` has the requests of tenants with no other replica; requests of the others come by
        `take`.
        """
        self.name, self.setup = name, setup
        self._variant, self._seed, self._skipping = variant, seed, skipping
        self._feeds = {t.name: feeds[t.name] for t in setup.experiment.tenants if t.name in feeds}
        self._losses = deque(round(outage.at_s * PS) for outage in outages)
        self._observe = observe
        self.in_flight = {tenant.name: 0 for tenant in setup.experiment.tenants}
        """Unfinished requests from `take`, by tenant; undefined for tenants with a feed."""
        self.engines: list[Engine] = []
        """Engines of all lives of the device, in order."""
        self.stands: dict[str, Stand | None] | None = None
        """State in which each tenant begins the next life; None if the roster chooses."""
        self.world: World | None = None
        """The simulated world; None while the device is lost."""
        self._here: dict[str, Engine] = {}
        self._end = NEVER
        """Time at which the present life ends by the loss of the device."""

    def begin(self, now: int, until: int) -> None:
        """Begin a life of the device at `now`, with no request on it. No span of steps goes on
        beyond `until`, when measuring begins anew or the run ends."""
        self._end = self._losses.popleft() if self._losses else NEVER
        arrivals: dict[str, Iterator[SimulatedRequest]] = {
            tenant: self._feeds[tenant].before(self._end) if tenant in self._feeds else iter(())
            for tenant in self.in_flight
        }
        world = build.world(
            self.setup,
            self._variant,
            self._seed,
            skipping=self._skipping,
            arrivals=arrivals,
            start=now,
            stands=self.stands,
        )
        world.observer = self._observe(self, world)
        self.world = world
        self.measure(until)
        self._here = {engine.name: engine for engine in world.engines}
        self.engines += world.engines
        self.in_flight = dict.fromkeys(self.in_flight, 0)

    def measure(self, until: int) -> None:
        """Set the time at which measuring begins anew or the run ends: no span goes on beyond it,
        nor beyond the end of this life.
        """
        if self.world is not None:
            self.world.until = min(until, self._end)

    def advance(self, time: int) -> None:
        """Simulate all events of this device before `time`."""
        if self.world is not None and self.world.next_time < time:
            self.world.advance(time)

    def run(self, until: int) -> None:
        """Simulate this device until `until` (picoseconds)."""
        if self.world is not None:
            self.world.run(until)

    def take(self, tenant: str, request: SimulatedRequest, now: int) -> None:
        """Receive a request from the router; all events before `now` have been simulated."""
        assert self.world is not None, "a lost device takes nothing"
        self.in_flight[tenant] += 1
        self.world.come(self._here[tenant], request, now)

    def wish(self, tenant: str, wish: LifeState, now: int) -> None:
        """Have a tenant of the roster become ready, sleep or stop; all events before `now` have
        been simulated.
        """
        assert self.world is not None, "a lost device obeys nobody"
        self.world.happens(partial(self._roster.wish, tenant, wish), now)

    def is_ready(self, tenant: str, since: int) -> bool:
        """True if the tenant is ready now, or became ready after `since` (picoseconds)."""
        return self._roster.is_ready(tenant, since)

    def is_gone(self, tenant: str) -> bool:
        """True if the tenant has no process on this device."""
        return self._roster.is_gone(tenant)

    @property
    def _roster(self) -> RosteredDomain:
        assert self.world is not None, "a lost device has no roster"
        (domain,) = self.world.domains
        assert isinstance(domain, RosteredDomain), "without a roster nothing comes or goes"
        return domain

    def lose(self) -> list[tuple[str, SimulatedRequest]]:
        """Lose the device; return its unfinished requests with their tenants."""
        left = [(e.name, request) for e in self._here.values() for request in e.queues.abandon()]
        self.world = None
        return left
