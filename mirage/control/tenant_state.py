"""Metadata Store: all that the controller knows of its tenants.

Reports go in, frozen snapshots come out. Values that should not change a decision back and forth
are kept as the maximum of the last `cooldown_s` seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

import msgspec

from mirage.control.demand import lacks_admission, still_wanted
from mirage.control.profiled import NOT_PROFILED, UNPROFILED, Profiled
from mirage.control.token_waits import token_waits
from mirage.control.windows import RecentMax, RecentMean, RecentRate
from mirage.geometry import token_bytes
from mirage.protocol import Allotment, ModelShape, Report
from scheduler.clocked import Clocked
from scheduler.tenants import Activity, Tenant

AGAIN_S = 60.0
"""Seconds over which repeated use of cached prefixes is measured: about the time that people take
to answer."""
PAUSES_S = 600.0
"""Seconds over which the longest pause counts."""
RECOMPUTED_S = 60.0
"""Seconds over which the rate is averaged at which tokens are computed again."""
COST_S = 60.0
"""Seconds over which the time is averaged that loads of layers add to tokens."""


class TenantSnapshot(msgspec.Struct, frozen=True, eq=False):
    """A joined tenant at one moment; the same object is returned until something about the tenant
    changes."""

    name: str
    """Name of the tenant."""
    tenant: Tenant
    shape: ModelShape
    report: Report
    """Newest report; for an engine that has sent none, a report of what it held when it joined."""
    allotment: Allotment | None
    """Newest allotment that was sent; None before the first."""
    pending: tuple[Allotment, ...]
    """Allotments that were sent and not seen by the engine yet, oldest first."""
    active: bool
    last_busy: float
    """Time of the last activity in seconds; `inf` while busy, so that all busy tenants tie."""
    growth_extents: int
    """Extents in total that its running requests want; while it is not active, those in use."""
    admission_extents: int
    """Extents in total with which its waiting requests could start as well; while it is not active,
    those in use."""
    peak_extents: int
    """Most extents that the tenant wanted in the last `cooldown_s` seconds."""
    peak_compute_s: float
    """Largest T_c, in seconds, of the last `cooldown_s` seconds."""
    least_compute_s: float = 0.0
    """Smallest T_c that it ever reported, in seconds, as for a batch of one; 0 before the first."""
    mean_compute_s: float = 0.0
    """Mean T_c, in seconds, of its reports with running requests; once a request has waited, only
    of reports with waiting requests. 0 before the first."""
    again_blocks_s: float = 0.0
    """Cached blocks without a request that a request took again, per second, over about the last
    minute."""
    longest_pause_s: float = 0.0
    """Longest recent pause without work that ended with new work, in seconds."""
    lacked: bool = False
    """True if its requests waited for memory in the last report that it sent with the turn."""
    recomputed_tokens_s: float = 0.0
    """Tokens of preempted requests that it computed again, per second, over about the last
    minute."""
    costly: bool = False
    """True if waits for its layers lately added more to its tokens than `Tenant.max_cost_ms`."""

    @property
    def used_extents(self) -> int:
        """KV extents that running requests of the tenant use."""
        return self.report.kv_used_extents

    @property
    def layers_out(self) -> int:
        """Layers that are given away, or that the engine was told to give away."""
        return max(
            self.report.layers_remapped, self.allotment.layers_remapped if self.allotment else 0
        )

    @property
    def byte_s(self) -> float:
        """Seconds to compute a byte of its KV memory; 0 while unknown."""
        return self.report.token_s / token_bytes(self.shape)

    @property
    def recomputed_part(self) -> float:
        """Part of all time, over about the last minute, in which it computed tokens again; 0 while
        the time of a token is unknown."""
        return self.recomputed_tokens_s * self.report.token_s

    @property
    def staying_part(self) -> float:
        """Fixed part of its mean decode step: the least compute time over the mean one, 0 to 1; 1
        while unknown.

        The present step is not used, because the result would vary with the batch.
        """
        return self.least_compute_s / self.mean_compute_s if self.mean_compute_s else 1.0


class Snapshot(msgspec.Struct, frozen=True):
    """All joined tenants at one moment, in the order of the configuration."""

    now: float
    tenants: tuple[TenantSnapshot, ...]


@dataclass(slots=True)
class _Record:
    shape: ModelShape
    report: Report
    wanted: RecentMax
    compute: RecentMax
    sent: list[Allotment] = field(default_factory=list)
    """Allotments that were sent and not seen yet, and in any case the newest."""
    activity: Activity = field(default_factory=Activity)
    newest: Clocked[TenantSnapshot] | None = None
    """Newest snapshot; None if an event came since."""
    least_compute_s: float = 0.0
    mean_compute_s: float = 0.0
    computing: int = 0
    """Number of reports in the mean."""
    queued: bool = False
    """True if the mean is of reports with waiting requests."""
    lacked: bool = False
    again: RecentRate = field(default_factory=lambda: RecentRate(AGAIN_S))
    recomputed: RecentRate = field(default_factory=lambda: RecentRate(RECOMPUTED_S))
    pauses: RecentMax = field(default_factory=lambda: RecentMax(PAUSES_S))
    cost: RecentMean = field(default_factory=lambda: RecentMean(COST_S))
    """Seconds that waits for layers added to each token."""
    stepped: Report | None = None
    """Last report that counted a new step."""

    def seen(self, busy: bool, now: float) -> None:
        """Note at `now` seconds whether the tenant has work (`busy`)."""
        before = self.activity
        if busy and not before.busy and before.last_busy > -inf:
            self.pauses.add(now - before.last_busy, now)
        self.activity = before.seen(busy, now)

    def waited(self, report: Report, now: float) -> None:
        """Note the time that waits for layers have added to tokens."""
        if self.stepped is not None and (waits := token_waits(self.stepped, report)) is not None:
            self.cost.add(waits.token_s, waits.tokens, now)
        if self.stepped is None or report.steps != self.stepped.steps:
            self.stepped = report

    def computed(self, report: Report) -> None:
        """Update the least and the mean T_c with that of a report, unless that is 0 (unknown).

        The mean is of reports with running requests. The first of them that has waiting requests
        too begins a new mean, only of reports with both, because the length of steps decides how
        much memory is lent while requests wait. Earlier steps with small batches would bring the
        mean near the least T_c, as if larger batches cost little.
        """
        now = report.layer_compute_s
        if not now:
            return
        self.least_compute_s = min(self.least_compute_s or inf, now)
        if report.waiting and report.running and not self.queued:
            self.queued, self.computing = True, 0
        if report.running and (report.waiting or not self.queued):
            self.computing += 1
            self.mean_compute_s += (now - self.mean_compute_s) / self.computing


class MetadataStore:
    """State of all tenants: events go in with their time in seconds, snapshots come out.

    With `temporal`, only the tenant that has the turn is active; otherwise all that have work, or
    had some less than `cooldown_s` seconds ago. `for_admission` is True if waiting requests count
    as demand that lingers. `profiled` has a tenant's times until its engine has measured them.
    """

    def __init__(
        self,
        tenants: Iterable[Tenant],
        *,
        cooldown_s: float,
        for_admission: bool = True,
        temporal: bool = False,
        profiled: Mapping[str, Profiled] = UNPROFILED,
    ) -> None:
        self._profiled = profiled
        self._tenants = {t.name: t for t in tenants}
        self._cooldown_s = cooldown_s
        self._for_admission = for_admission
        self._temporal = temporal
        self._holder: str | None = None
        self._records: dict[str, _Record] = {}
        self._newest: Clocked[tuple[TenantSnapshot, ...]] | None = None
        """Newest snapshot of all joined tenants; None if an event came since."""

    def declares(self, tenant: Tenant, profiled: Profiled | None = None) -> None:
        """Add a tenant, or set its rights from now on. `profiled` replaces the times that it has
        until its engine has measured them; None leaves them."""
        self._tenants[tenant.name] = tenant
        if profiled is not None:
            self._profiled = {**self._profiled, tenant.name: profiled}
        if (record := self._records.get(tenant.name)) is not None:
            record.newest = None
        self._newest = None

    def removed(self, name: str) -> None:
        """Remove a tenant that is lost."""
        del self._tenants[name]
        self._profiled = {n: known for n, known in self._profiled.items() if n != name}

    def joined(self, name: str, shape: ModelShape, held_bytes: int) -> None:
        """Note that an engine starts anew: only its shape and held bytes are known."""
        report = Report(
            revision=0,
            holds_turn=False,
            held_bytes=held_bytes,
            layers_remapped=0,
            stream_slots=0,
            kv_extents=0,
            kv_used_extents=0,
        )
        windows = RecentMax(self._cooldown_s), RecentMax(self._cooldown_s)
        self._records[name] = _Record(shape, self._filled(name, report, shape), *windows)
        self._newest = None

    def reported(self, name: str, report: Report, now: float) -> None:
        record = self._records[name]
        record.report = self._filled(name, report, record.shape)
        record.sent = [
            a for a in record.sent if a.revision >= report.revision or a is record.sent[-1]
        ]
        record.compute.add(report.layer_compute_s, now)
        record.computed(report)
        if report.holds_turn:
            record.lacked = lacks_admission(report)
        record.again.add(report.blocks_again, now)
        record.recomputed.add(report.recomputed_tokens, now)
        record.waited(report, now)
        self._note(name, now)

    def sent(self, name: str, allotment: Allotment) -> None:
        record = self._records[name]
        record.sent.append(allotment)
        record.newest = self._newest = None

    def turn(self, name: str | None, now: float) -> None:
        """Note that `name` got the turn (temporal sharing).

        None: no tenant did, and the holder stays.
        """
        before, self._holder = self._holder, name or self._holder
        for changed in (before, self._holder):
            if changed in self._records:
                self._note(changed, now)

    def lost(self, name: str) -> None:
        self._records.pop(name, None)
        self._newest = None
        if name == self._holder:
            self._holder = None

    def snapshot(self, now: float) -> Snapshot:
        return Snapshot(now, self._every(now).value)

    def shape(self, name: str) -> ModelShape:
        """Return the shape of a joined tenant's engine."""
        return self._records[name].shape

    def is_active(self, name: str, now: float) -> bool:
        """True if a joined tenant counts as active."""
        return self._active(self._records[name], now).value

    def valid_until(self, now: float) -> float:
        """Return the time in seconds up to which `snapshot(now)`, the state of all tenants, is
        valid without another event; inf for ever."""
        return self._every(now).valid_until

    def _filled(self, name: str, report: Report, shape: ModelShape) -> Report:
        """Return a copy of the report, with values of the hardware profile where the engine has not
        measured yet."""
        return self._profiled.get(name, NOT_PROFILED).filled(report, shape.layers)

    def _note(self, name: str, now: float) -> None:
        record = self._records[name]
        record.newest = self._newest = None
        busy = record.report.running + record.report.waiting > 0
        busy = name == self._holder if self._temporal else busy
        record.seen(busy, now)
        growth, admission = self._wanted(record, self._active(record, now).value)
        record.wanted.add(admission if self._for_admission else growth, now)

    def _active(self, record: _Record, now: float) -> Clocked[bool]:
        return record.activity.at(now, 0 if self._temporal else self._cooldown_s)

    def _wanted(self, record: _Record, active: bool) -> tuple[int, int]:
        """Return the extents for growth and for admission. A tenant that is not `active` may not
        step, so it wants only the extents in use."""
        if not active:
            return record.report.kv_used_extents, record.report.kv_used_extents
        newest = record.sent[-1] if record.sent else None
        newer = newest is not None and newest.revision > record.report.revision
        allotted = newest.kv_extents if newest is not None and newer else None
        return still_wanted(record.report, allotted)

    def _every(self, now: float) -> Clocked[tuple[TenantSnapshot, ...]]:
        newest = self._newest
        if newest is None or now >= newest.valid_until:
            each = [self._one(name, now) for name in self._tenants if name in self._records]
            ends = min([one.valid_until for one in each], default=inf)
            newest = self._newest = Clocked(tuple([one.value for one in each]), ends)
        return newest

    def _one(self, name: str, now: float) -> Clocked[TenantSnapshot]:
        record = self._records[name]
        newest = record.newest
        if newest is None or now >= newest.valid_until:
            newest = record.newest = self._made(name, record, now)
        return newest

    def _made(self, name: str, record: _Record, now: float) -> Clocked[TenantSnapshot]:
        seen = record.report.revision
        active, peak = self._active(record, now), record.wanted.at(now)
        peak_compute, pause = record.compute.at(now), record.pauses.at(now)
        growth, admission = self._wanted(record, active.value)
        costly = _costly(self._tenants[name], record, now)
        # Without a step of its own, the profile's T_c is all there is.
        compute_s = 0.0 if record.least_compute_s else record.report.layer_compute_s
        snapshot = TenantSnapshot(
            name=name,
            tenant=self._tenants[name],
            shape=record.shape,
            report=record.report,
            allotment=record.sent[-1] if record.sent else None,
            pending=tuple([a for a in record.sent if a.revision > seen]),
            active=active.value,
            last_busy=inf if record.activity.busy else record.activity.last_busy,
            growth_extents=growth,
            admission_extents=admission,
            peak_extents=int(peak.value),
            peak_compute_s=compute_s or peak_compute.value,
            least_compute_s=compute_s or record.least_compute_s,
            mean_compute_s=record.mean_compute_s,
            again_blocks_s=record.again.per_s,
            longest_pause_s=pause.value,
            lacked=record.lacked,
            recomputed_tokens_s=record.recomputed.per_s,
            costly=costly.value,
        )
        known = active, peak, peak_compute, pause, costly
        return Clocked(snapshot, min([one.valid_until for one in known]))


def _costly(tenant: Tenant, record: _Record, now: float) -> Clocked[bool]:
    if tenant.max_cost_ms is None:
        return Clocked(False)
    cost = record.cost.at(now)
    return Clocked(cost.value * 1e3 > tenant.max_cost_ms, cost.valid_until)
