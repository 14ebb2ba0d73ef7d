"""The Metadata Store: all that the controller knows of its tenants.

Reports go in, frozen snapshots come out. Facts that a decision must not flicker with are
kept as the maximum of the last `cooldown_s` seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, inf
from typing import NamedTuple

from mirage.control.demand import still_wanted
from mirage.control.profiled import UNPROFILED, Profiled
from mirage.protocol import Allotment, ModelShape, Report
from scheduler.tenants import Activity, Tenant

AGAIN_S = 60.0
"""Of which it counts how often cached prefixes are asked for: people take as long to answer."""


class RecentMax:
    """The maximum of a value over the last `span_s` seconds, each one in force until the next."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._falls: deque[tuple[float, float]] = deque()
        """(since when no larger value was seen, value), values strictly falling."""

    def add(self, value: float, now: float) -> None:
        since = now
        while self._falls and self._falls[-1][1] <= value:
            since = self._falls.pop()[0]
        self._falls.append((since, value))

    def get(self, now: float) -> float:
        """0 before the first value."""
        while (until := self.next_fall()) is not None and until <= now:
            self._falls.popleft()
        return self._falls[0][1] if self._falls else 0

    def next_fall(self) -> float | None:
        """When the maximum will change if nothing is added."""
        return self._falls[1][0] + self._span_s if len(self._falls) > 1 else None


class RecentRate:
    """How much a counter grows a second: smoothed, so that what is `span_s` ago counts a third."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._seen: tuple[int, float] | None = None
        self.per_s = 0.0

    def add(self, count: int, now: float) -> None:
        """What the counter shows. One that falls began anew."""
        if self._seen is None or count < self._seen[0]:
            self._seen = count, now
            return
        before, since = self._seen
        if now <= since:
            return
        lately = 1 - exp(-(now - since) / self._span_s)
        self.per_s += lately * ((count - before) / (now - since) - self.per_s)
        self._seen = count, now


@dataclass(frozen=True, slots=True, eq=False)
class TenantSnapshot:
    """One joined tenant at one moment; the same object until something about it changes."""

    tenant: Tenant
    shape: ModelShape
    report: Report
    """The newest; of an engine that has sent none, what it held when it joined."""
    allotment: Allotment | None
    """The newest sent."""
    pending: tuple[Allotment, ...]
    """Sent and not yet seen, oldest first."""
    active: bool
    last_busy: float
    """Seconds; of one that is busy inf, so that whoever reported last is no more recent."""
    growth_extents: int
    """Extents in total that its running requests want."""
    admission_extents: int
    """Extents in total with which its waiting requests could start as well."""
    peak_extents: int
    """The most that it wanted in the last `cooldown_s` seconds."""
    peak_compute_s: float
    """The largest T_c in the last `cooldown_s` seconds."""
    least_compute_s: float = 0.0
    """The smallest T_c that it ever reported, as of a batch of one; 0 before the first."""
    mean_compute_s: float = 0.0
    """The mean T_c of its reports with running requests; 0 before the first."""
    again_blocks_s: float = 0.0
    """Cached blocks that no request had and that one took again, per second of the last minute."""

    @property
    def name(self) -> str:
        return self.tenant.name

    @property
    def used_extents(self) -> int:
        """Extents that its running requests sit on."""
        return self.report.kv_used_extents

    @property
    def layers_out(self) -> int:
        """Layers that are given away, or told to be."""
        return max(self.report.alpha, self.allotment.alpha if self.allotment else 0)

    @property
    def staying_part(self) -> float:
        """Of its decode step on average, what a single request's takes as well: 0 to 1.

        Not of its present one: what follows from it would come and go with the batch.
        """
        return self.least_compute_s / self.mean_compute_s if self.mean_compute_s else 1.0


class Snapshot(NamedTuple):
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
    """The newest, and all others not yet seen."""
    activity: Activity = field(default_factory=Activity)
    newest: TenantSnapshot | None = None
    """Made last, if nothing was heard or said since."""
    until: float = inf
    """How long it holds."""
    least_compute_s: float = 0.0
    mean_compute_s: float = 0.0
    computing: int = 0
    """Reports that the mean is of."""
    again: RecentRate = field(default_factory=lambda: RecentRate(AGAIN_S))

    def computed(self, report: Report) -> None:
        """Note the T_c of a report, if it has one."""
        now = report.layer_compute_s
        if not now:
            return
        self.least_compute_s = min(self.least_compute_s or inf, now)
        if report.running:
            self.computing += 1
            self.mean_compute_s += (now - self.mean_compute_s) / self.computing


class MetadataStore:
    """Events with their time in seconds in, snapshots out.

    With `temporal`, the tenant that has the turn is the active one, and nothing else counts;
    otherwise all that have work, or had some less than `cooldown_s` ago. `for_admission` says
    whether waiting requests count as demand that lingers. `profiled` has a tenant's times until its
    engine has measured them.
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

    def joined(self, name: str, shape: ModelShape, held_bytes: int) -> None:
        """An engine starts anew: nothing is known of it but its shape."""
        report = Report(
            revision=0,
            holds_turn=False,
            held_bytes=held_bytes,
            alpha=0,
            beta=0,
            kv_extents=0,
            kv_used_extents=0,
        )
        windows = RecentMax(self._cooldown_s), RecentMax(self._cooldown_s)
        self._records[name] = _Record(shape, self._filled(name, report, shape), *windows)

    def reported(self, name: str, report: Report, now: float) -> None:
        record = self._records[name]
        record.report = self._filled(name, report, record.shape)
        record.sent = [
            a for a in record.sent if a.revision >= report.revision or a is record.sent[-1]
        ]
        record.compute.add(report.layer_compute_s, now)
        record.computed(report)
        record.again.add(report.blocks_again, now)
        self._note(name, now)

    def sent(self, name: str, allotment: Allotment) -> None:
        record = self._records[name]
        record.sent.append(allotment)
        record.newest = None

    def turn(self, name: str | None, now: float) -> None:
        """Temporal sharing: `name` got the turn; None says only that nobody else did."""
        before, self._holder = self._holder, name or self._holder
        for changed in (before, self._holder):
            if changed in self._records:
                self._note(changed, now)

    def lost(self, name: str) -> None:
        self._records.pop(name, None)
        if name == self._holder:
            self._holder = None

    def snapshot(self, now: float) -> Snapshot:
        joined = (name for name in self._tenants if name in self._records)
        return Snapshot(now, tuple(self._one(name, now) for name in joined))

    def is_active(self, name: str, now: float) -> bool:
        """Whether a joined tenant counts as active."""
        return self._active(name, now)

    def next_deadline(self, now: float) -> float | None:
        """When a snapshot would differ from that of `now` without another event."""
        for name in self._records:
            self._one(name, now)
        first = min((record.until for record in self._records.values()), default=inf)
        return None if first == inf else first

    def _filled(self, name: str, report: Report, shape: ModelShape) -> Report:
        """A copy, in which what the engine has not measured yet is what its profile says."""
        return self._profiled.get(name, Profiled()).filled(report, shape.layers)

    def _note(self, name: str, now: float) -> None:
        record = self._records[name]
        record.newest = None
        busy = record.report.running + record.report.waiting > 0
        busy = name == self._holder if self._temporal else busy
        record.activity = record.activity.seen(busy, now)
        growth, admission = self._wanted(name, now)
        record.wanted.add(admission if self._for_admission else growth, now)

    def _active(self, name: str, now: float) -> bool:
        cooldown_s = 0 if self._temporal else self._cooldown_s
        return self._records[name].activity.is_active(now, cooldown_s)

    def _wanted(self, name: str, now: float) -> tuple[int, int]:
        """Extents for growth and for admission; of a tenant that may not step, what it sits on."""
        record = self._records[name]
        if not self._active(name, now):
            return record.report.kv_used_extents, record.report.kv_used_extents
        newest = record.sent[-1] if record.sent else None
        newer = newest is not None and newest.revision > record.report.revision
        allotted = newest.kv_extents if newest is not None and newer else None
        return still_wanted(record.report, allotted)

    def _one(self, name: str, now: float) -> TenantSnapshot:
        record = self._records[name]
        if record.newest is None or now >= record.until:
            record.newest = self._made(name, record, now)
            record.until = self._until(name, record, now)
        return record.newest

    def _until(self, name: str, record: _Record, now: float) -> float:
        falls = (record.wanted.next_fall(), record.compute.next_fall())
        first = min((t for t in falls if t is not None), default=inf)
        if self._temporal or record.activity.busy or not self._active(name, now):
            return first
        return min(first, record.activity.last_busy + self._cooldown_s)

    def _made(self, name: str, record: _Record, now: float) -> TenantSnapshot:
        seen = record.report.revision
        growth, admission = self._wanted(name, now)
        # Without a step of its own, the profile's T_c is all there is.
        compute_s = 0.0 if record.least_compute_s else record.report.layer_compute_s
        return TenantSnapshot(
            tenant=self._tenants[name],
            shape=record.shape,
            report=record.report,
            allotment=record.sent[-1] if record.sent else None,
            pending=tuple(a for a in record.sent if a.revision > seen),
            active=self._active(name, now),
            last_busy=inf if record.activity.busy else record.activity.last_busy,
            growth_extents=growth,
            admission_extents=admission,
            peak_extents=int(record.wanted.get(now)),
            peak_compute_s=compute_s or record.compute.get(now),
            least_compute_s=compute_s or record.least_compute_s,
            mean_compute_s=record.mean_compute_s,
            again_blocks_s=record.again.per_s,
        )
