"""Facts about every tenant now: written by the parts that learn them, read by those that show
them.
"""

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
from mirage.serve.access.rates import (
    NO_BOUNDS,
    NO_LIMITS,
    BodyBounds,
    RateLimits,
    body_bounds,
    rate_limits,
)
from mirage.serve.adapting.desired import AdapterBook
from mirage.serve.ends.comeback import Comeback
from mirage.serve.health.device_health import DeviceHealth
from mirage.serve.health.owed_answers import OwedAnswers
from mirage.serve.models.weights_progress import BroughtWeights
from mirage.serve.overview.pace import EnginePace
from mirage.serve.registry.timeline import PAGE_SAMPLES, Timeline
from mirage.serve.whatif.past import PastRequests
from mirage.tiers.counts import PoolState

SERVED = frozenset(LifeState) - {LifeState.STARTING, LifeState.DOWN, LifeState.FAILED}
"""States in which a tenant is well: it serves, or will when it gets a request."""

MOST_PASSED = 100
"""Most states of a tenant that are kept until they are taken."""


@dataclass
class TenantServer:
    """Address and state of one tenant's vLLM server."""

    name: str
    socket: Path
    max_model_len: int
    state: LifeState = LifeState.STARTING
    restarts: int = 0
    reason: str = ""
    """Reason of a failure, or of a wait before a start, in one line; else empty."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Folders of the LoRA adapters that the engine loads at its start, by name."""
    loading: AdapterBook = field(default_factory=AdapterBook)
    """Adapters that the engine loads while it runs."""
    aliases: tuple[str, ...] = ()
    """Other names of its model that requests may use."""
    limits: RateLimits = NO_LIMITS
    bounds: BodyBounds = NO_BOUNDS
    answers: OwedAnswers = field(default_factory=OwedAnswers)
    comeback: Comeback = field(default_factory=Comeback)
    adopted: bool = False
    """True if its engine was taken over from another server, which was killed."""
    missed: bool = True
    """True until the tenant first serves, and from a failure until it serves again. A tenant that
    starts meanwhile is not well (`is_well`).
    """
    leaves: bool = False
    """True if the tenant was removed but still runs requests: it gets no new ones."""
    passed: deque[LifeState] = field(default_factory=lambda: deque(maxlen=MOST_PASSED))
    """States that it has entered since the last `take_passed`, the newest last; at most
    `MOST_PASSED`."""

    def enters(self, state: LifeState) -> None:
        """Note that the tenant has entered another state, even if only for a moment."""
        if state is not self.state:
            self.state = state
            self.passed.append(state)
        if state is not LifeState.STARTING:
            self.missed = state not in SERVED

    @property
    def is_well(self) -> bool:
        """True if the tenant serves, or will serve when a request comes. A tenant that starts is
        well if it was well before, for instance a stopped tenant that a request starts.
        """
        return not self.missed if self.state is LifeState.STARTING else self.state in SERVED

    def take_passed(self) -> list[LifeState]:
        """Return the states in `passed`, and clear it."""
        taken = list(self.passed)
        self.passed.clear()
        return taken

    def declares(self, tenant: TenantSection) -> None:
        """Use the keys of the tenant's section that affect requests."""
        self.limits, self.bounds = rate_limits(tenant.limits), body_bounds(tenant)
        self.aliases = tuple(tenant.aliases)
        self.loading.declares(tenant.adapters)

    def fail(self, reason: str) -> None:
        self.enters(LifeState.FAILED)
        self.reason = reason

    def told(self, *, reasons: bool = True) -> dict[str, Any]:
        """State of the tenant in the form of ``/mirage/state``; `reasons` adds the reason."""
        told: dict[str, Any] = {"state": self.state.value, "restarts": self.restarts}
        if self.adopted:
            told["adopted"] = True
        if adapters := self.loading.told():
            told["adapters"] = {name: one.state.value for name, one in adapters.items()}
        return told | ({"reason": self.reason} if self.reason and reasons else {})


class KeptWeights(Protocol):
    """Keeper of weights, as the registry sees it."""

    def kept(self, tenant: str) -> bool:
        """True if the tenant's weights are in host memory."""

    def state(self) -> dict[str, int] | None:
        """Number of masters, their bytes in use and idle, and the most idle bytes; None if no
        tenant's weights were ever to be kept."""


class DecidedMemory(Protocol):
    """Arbiter of the device, as metrics see it."""

    growth: GrowthWaits
    decisions: DecisionCounts


class AttendedTenants(Protocol):
    """Tenants that sleep and wake as requests need them (an `Attendance`), as metrics see them."""

    wakes: defaultdict[str, TimeCounts]
    starts: defaultdict[str, TimeCounts]

    def queued(self) -> dict[str, int]:
        """Number of requests to each tenant that wait until it is ready."""

    def yields_s(self, name: str) -> float | None:
        """Seconds until `keep_alive` or `stop_after` puts the tenant to sleep or stops it; None if
        they do not.
        """


@dataclass(frozen=True)
class DeviceSources:
    """Functions and objects that the registry asks about the device."""

    pool: Callable[[], PoolState | None] = lambda: None
    """State of the host pool; None if there is no pool."""
    disk: Callable[[], dict[str, int | bool] | None] = lambda: None
    """State of the SSD tier; None if there is no SSD tier."""
    outside: Callable[[Collection[str]], dict[str, Any]] = lambda names: {}
    """Memory of the device outside grants, for ``/mirage/state``."""
    why: Callable[[str], Iterable[Move]] = lambda name: ()
    """Moves of the present plan from or to a tenant."""
    device: Callable[..., dict[str, Any]] = DeviceHealth().told
    """Health of the device; the argument `reasons` adds the reason of a failure."""
    weights: KeptWeights | None = None
    """Weights that are kept in host memory; None if there is no keeper."""
    loans: Callable[[], Mapping[Pair, LoanSums]] = dict
    """Sums of loans since the server's start, by lender and borrower."""
    decided: DecidedMemory | None = None
    """Decisions and waits for growth; None if no arbiter decides here."""
    attended: Callable[[], AttendedTenants | None] = lambda: None
    """Tenants that come and go; None if there is no roster."""
    server_ends: Callable[[], Mapping[str, Mapping[str, int]]] = dict
    """Number of device servers that ended before the process above them, by device and cause."""
    moves: Callable[[], Mapping[str, int]] = dict
    """Number of moves of models between devices that are over, by result."""
    ahead: BroughtWeights | None = None
    """Weights that are brought ahead of their use; None if none are."""


NOTHING = DeviceSources()


@dataclass
class Registry:
    """Facts about all tenants. `reports` has only tenants with a connected engine.

    `shapes` has all tenants that ever had a connected engine, because the timeline still has their
    samples. Times are seconds.
    """

    policy: Policy
    device_bytes: int
    backends: dict[str, TenantServer]
    sources: DeviceSources = NOTHING
    shapes: dict[str, ModelShape] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    gone: dict[str, Report] = field(default_factory=dict)
    """Last report of each tenant's last engine that has ended."""
    timeline: Timeline = field(default_factory=Timeline)
    pace: EnginePace = field(default_factory=EnginePace)
    """Rates of engines over the last seconds."""
    past: PastRequests = field(default_factory=PastRequests)
    """Lengths and times of the last hour's requests."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a tenant has entered another state; the task that waits for it clears it."""

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
        """Body of ``/mirage/state``: the newest sample, and the state of each engine.

        `reasons` adds lines of logs, which not everybody may see.
        """
        engines = {name: b.told(reasons=reasons) for name, b in self.backends.items()}
        for name, told in engines.items():
            told["moves"] = [moved(move) for move in self.sources.why(name)]
        head = {**self._head(), "device": self.sources.device(reasons=reasons), "engines": engines}
        outside = self.sources.outside(self.backends)
        weights = self.sources.weights.state() if self.sources.weights is not None else None
        kept = {} if weights is None else {"kept_weights": weights}
        return {**head, **outside, **self.tiers(), **kept, **self.timeline.newest}

    def lost(self, tenant: str) -> None:
        """Note that the tenant's engine has ended; its last report is kept in `gone`."""
        if (last := self.reports.pop(tenant, None)) is not None:
            self.gone[tenant] = last

    def forget(self, tenant: str) -> None:
        """Forget a removed tenant that has ended, except for its shape."""
        self.reports.pop(tenant, None)
        self.gone.pop(tenant, None)
        self.past.forget(tenant)
        del self.backends[tenant]

    def ended(self, tenant: str, rows: bytes, now: float) -> None:
        """Add rows of ended requests of a tenant: see `PastRequests`. `now` is by
        `time.monotonic`.
        """
        if tenant in self.backends:
            report = self.last_report(tenant)
            self.past.add(tenant, rows, report.preemptions if report is not None else 0, now)

    def last_report(self, tenant: str) -> Report | None:
        """Report of the tenant's engine, or of its last one; None if none has reported."""
        return self.reports.get(tenant) or self.gone.get(tenant)

    def measured(self, tenant: str) -> Report | None:
        """Report from which the tenant's step times can be read: that of the present engine, or the
        last one of the engine before while the present engine has measured no step.

        If there was no engine before, the report of the present engine, which has no step times
        yet; None if no engine has reported.
        """
        report = self.reports.get(tenant)
        known = report is not None and report.step_s > 0
        return report if known else self.gone.get(tenant, report)

    def keeps(self, tenant: str) -> bool:
        """True if a tenant's weights are in host memory, whether it has an engine or not."""
        return self.sources.weights is not None and self.sources.weights.kept(tenant)

    def tiers(self) -> dict[str, Any]:
        """State of memory below the device, in the form of ``/mirage/state``."""
        pool = self.sources.pool()
        told: dict[str, Any] = {} if pool is None else {"host_pool": asdict(pool)}
        if (disk := self.sources.disk()) is not None:
            told["ssd"] = disk
        return told

    def history(self, since: float | None = None, limit: int = PAGE_SAMPLES) -> dict[str, Any]:
        """Body of ``/mirage/timeline``, with at most `limit` samples after `since` seconds as JSON:
        see `Timeline.page`."""
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
    """Move of a plan in the form of ``/mirage/state``."""
    return {
        "from": str(move.source),
        "to": str(move.to),
        "bytes": move.nbytes,
        "reason": move.reason,
        "because": move.reason.sentence,
    }


def _fixed(shape: ModelShape) -> dict[str, int]:
    return {field: getattr(shape, field) for field in TenantShape.__struct_fields__}
