"""Facts about every tenant right now: written by those who learn them, read by who tells them."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mirage.config import Policy, TenantSection
from mirage.control.decision_counts import DecisionCounts
from mirage.control.growth_waits import GrowthWaits
from mirage.control.loan_sums import LoanSums, Pair
from mirage.control.moves import Move
from mirage.control.roster.states import LifeState
from mirage.control.time_counts import TimeCounts
from mirage.protocol import ModelShape, Report
from mirage.samples import SCHEMA_VERSION, TenantShape
from mirage.serve.adapting.desired import AdapterBook
from mirage.serve.ahead_metrics import BroughtWeights
from mirage.serve.device_health import DeviceHealth
from mirage.serve.ends.comeback import Comeback
from mirage.serve.overview.pace import EnginePace
from mirage.serve.owed import OwedAnswers
from mirage.serve.rates import (
    NO_BOUNDS,
    NO_LIMITS,
    BodyBounds,
    RateLimits,
    body_bounds,
    rate_limits,
)
from mirage.serve.timeline import PAGE_SAMPLES, Timeline
from mirage.serve.whatif.past import PastRequests
from mirage.tiers.counts import PoolState

SERVED = frozenset(LifeState) - {LifeState.STARTING, LifeState.DOWN, LifeState.FAILED}
"""States in which a tenant is well, perhaps not there before somebody asks for it."""

MOST_PASSED = 100
"""States that are remembered of a tenant if nobody asks for them."""


@dataclass
class TenantServer:
    """Address of one tenant's vLLM server, and whether it is worth asking."""

    name: str
    socket: Path
    max_model_len: int
    state: LifeState = LifeState.STARTING
    restarts: int = 0
    reason: str = ""
    """Why it failed, or what its start waits for, in one line; else empty."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """LoRA adapters that came with the engine's start: where each lies, by its name."""
    loading: AdapterBook = field(default_factory=AdapterBook)
    """Adapters that it loads while it runs."""
    aliases: tuple[str, ...] = ()
    """Other names of its model that requests may use."""
    limits: RateLimits = NO_LIMITS
    bounds: BodyBounds = NO_BOUNDS
    answers: OwedAnswers = field(default_factory=OwedAnswers)
    comeback: Comeback = field(default_factory=Comeback)
    adopted: bool = False
    """True if its engine was another server's, which was killed."""
    missed: bool = True
    """True if it should serve and does not: until it does, a start is no sign of being well."""
    leaves: bool = False
    """True if it was removed, and has not ended yet: no new request finds it."""
    passed: deque[LifeState] = field(default_factory=lambda: deque(maxlen=MOST_PASSED))
    """States that it has entered since somebody took them, the newest last."""

    def enters(self, state: LifeState) -> None:
        """The tenant is in another state, be it for no time at all."""
        if state is not self.state:
            self.state = state
            self.passed.append(state)
        if state is not LifeState.STARTING:
            self.missed = state not in SERVED

    @property
    def is_well(self) -> bool:
        """True if it serves, or will when it is asked; one that starts on request is well."""
        return not self.missed if self.state is LifeState.STARTING else self.state in SERVED

    def take_passed(self) -> list[LifeState]:
        """`passed`, which is empty then."""
        taken = list(self.passed)
        self.passed.clear()
        return taken

    def declares(self, tenant: TenantSection) -> None:
        """Keys of its section that hold for requests from now on."""
        self.limits, self.bounds = rate_limits(tenant.limits), body_bounds(tenant)
        self.aliases = tuple(tenant.aliases)
        self.loading.declares(tenant.adapters)

    def fail(self, reason: str) -> None:
        self.enters(LifeState.FAILED)
        self.reason = reason

    def told(self, *, reasons: bool = True) -> dict[str, Any]:
        """State of the tenant, as ``/mirage/state`` tells it."""
        told: dict[str, Any] = {"state": self.state.value, "restarts": self.restarts}
        if self.adopted:
            told["adopted"] = True
        if adapters := self.loading.told():
            told["adapters"] = {name: one.state.value for name, one in adapters.items()}
        return told | ({"reason": self.reason} if self.reason and reasons else {})


class KeptWeights(Protocol):
    """The keeper of weights."""

    def kept(self, tenant: str) -> bool:
        """True if the tenant's weights are in host memory."""

    def state(self) -> dict[str, int] | None:
        """Masters and their bytes; None where none are kept."""


class DecidedMemory(Protocol):
    """Arbiter of the device, as metrics see it."""

    growth: GrowthWaits
    decisions: DecisionCounts


class AttendedTenants(Protocol):
    """Attendance of the roster, as metrics see it."""

    wakes: defaultdict[str, TimeCounts]
    starts: defaultdict[str, TimeCounts]

    def queued(self) -> dict[str, int]:
        """Requests that wait for each tenant to be ready."""

    def yields_s(self, name: str) -> float | None:
        """Seconds until a tenant's own times put it to sleep or stop it; None if they do not."""


@dataclass(frozen=True)
class DeviceSources:
    """Sources that tell of the device when asked."""

    pool: Callable[[], PoolState | None] = lambda: None
    """The host pool; None if there is none."""
    disk: Callable[[], dict[str, int | bool] | None] = lambda: None
    """The SSD tier; None if there is none."""
    outside: Callable[[Collection[str]], dict[str, Any]] = lambda names: {}
    """Memory of the device that no grant has."""
    why: Callable[[str], Iterable[Move]] = lambda name: ()
    """Moves by which a plan came to what a tenant shall hold."""
    device: Callable[..., dict[str, Any]] = DeviceHealth().told
    """The device; asked with `reasons` as `health` is."""
    weights: KeptWeights | None = None
    """Weights that are kept in host memory; None if nobody knows."""
    loans: Callable[[], Mapping[Pair, LoanSums]] = dict
    """Sums of loans since the server started, by lender and borrower."""
    decided: DecidedMemory | None = None
    """Decisions and growth; None if nobody decides."""
    attended: Callable[[], AttendedTenants | None] = lambda: None
    """Tenants that come and go; None if none do."""
    server_ends: Callable[[], Mapping[str, Mapping[str, int]]] = dict
    """Servers of several devices that ended too early, by the device's name and the cause."""
    moves: Callable[[], Mapping[str, int]] = dict
    """Moves of models between several devices that are over, by their result."""
    ahead: BroughtWeights | None = None
    """Weights that come before they are needed; None if none do."""


NOTHING = DeviceSources()


@dataclass
class Registry:
    """`reports` holds only tenants whose engine is connected. `shapes` holds all that ever were:
    the timeline still has samples of them."""

    policy: Policy
    device_bytes: int
    backends: dict[str, TenantServer]
    sources: DeviceSources = NOTHING
    shapes: dict[str, ModelShape] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    gone: dict[str, Report] = field(default_factory=dict)
    """Last report of each tenant's last engine that is gone."""
    timeline: Timeline = field(default_factory=Timeline)
    pace: EnginePace = field(default_factory=EnginePace)
    """Rates of the last seconds."""
    past: PastRequests = field(default_factory=PastRequests)
    """Requests of the last hour."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a tenant has entered another state; who waits for it clears it."""

    def below_health(self) -> dict[str, Any]:
        """Part of ``/health`` about memory below the device."""
        return self._pool_health() | self._disk_health()

    def _pool_health(self) -> dict[str, Any]:
        if (pool := self.sources.pool()) is None:
            return {}
        used, budget = pool.used_bytes, pool.budget_bytes
        status = "ok" if pool.serving else "down"
        told = {"status": status, "used_bytes": used, "budget_bytes": budget}
        return {"host_pool": told | {"blocks": pool.blocks}}

    def _disk_health(self) -> dict[str, Any]:
        if (disk := self.sources.disk()) is None:
            return {}
        return {"ssd": {"status": "failed" if disk["failed"] else "ok"}}

    def state(self, *, reasons: bool = True) -> dict[str, Any]:
        """The body of ``/mirage/state``: the newest sample, and every engine's state."""
        engines = {name: b.told(reasons=reasons) for name, b in self.backends.items()}
        for name, told in engines.items():
            told["moves"] = [moved(move) for move in self.sources.why(name)]
        head = {**self._head(), "device": self.sources.device(reasons=reasons), "engines": engines}
        outside = self.sources.outside(self.backends)
        weights = self.sources.weights.state() if self.sources.weights is not None else None
        kept = {} if weights is None else {"kept_weights": weights}
        return {**head, **outside, **self.tiers(), **kept, **self.timeline.newest}

    def lost(self, tenant: str) -> None:
        """The tenant's engine is gone, and its last report is of the past."""
        if (last := self.reports.pop(tenant, None)) is not None:
            self.gone[tenant] = last

    def forget(self, tenant: str) -> None:
        """The tenant was removed, and has ended: nothing stays but what the timeline needs."""
        self.reports.pop(tenant, None)
        self.gone.pop(tenant, None)
        self.past.forget(tenant)
        del self.backends[tenant]

    def ended(self, tenant: str, rows: bytes, now: float) -> None:
        """Requests of a tenant have ended: see `PastRequests`. `now` is of the machine's clock."""
        if tenant in self.backends:
            report = self.last_report(tenant)
            self.past.add(tenant, rows, report.preemptions if report is not None else 0, now)

    def last_report(self, tenant: str) -> Report | None:
        """Report of its engine, or of the last one that it had; None if none has reported."""
        return self.reports.get(tenant) or self.gone.get(tenant)

    def measured(self, tenant: str) -> Report | None:
        """Last report that tells of steps, if any does; else that of `last_report`."""
        report = self.reports.get(tenant)
        known = report is not None and report.step_s > 0
        return report if known else self.gone.get(tenant, report)

    def keeps(self, tenant: str) -> bool:
        """True if a tenant's weights are in host memory, whether it has an engine or not."""
        return self.sources.weights is not None and self.sources.weights.kept(tenant)

    def tiers(self) -> dict[str, Any]:
        """Memory below the device, as ``/mirage/state`` tells it."""
        pool = self.sources.pool()
        told: dict[str, Any] = {} if pool is None else {"host_pool": asdict(pool)}
        if (disk := self.sources.disk()) is not None:
            told["ssd"] = disk
        return told

    def history(self, since: float | None = None, limit: int = PAGE_SAMPLES) -> dict[str, Any]:
        """The body of ``/mirage/timeline``, its samples as JSON: see `Timeline.page`."""
        tenants = {name: _fixed(shape) for name, shape in self.shapes.items()}
        page = self.timeline.page(since, limit)
        return {**self._head(), "tenants": tenants, **page._asdict()}

    def _head(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "policy": self.policy.value,
            "device_bytes": self.device_bytes,
        }


def moved(move: Move) -> dict[str, Any]:
    """Move of a plan, as it is told."""
    return {
        "from": str(move.source),
        "to": str(move.to),
        "bytes": move.nbytes,
        "reason": move.reason,
        "because": move.reason.sentence,
    }


def _fixed(shape: ModelShape) -> dict[str, int]:
    return {field: getattr(shape, field) for field in TenantShape.__struct_fields__}
