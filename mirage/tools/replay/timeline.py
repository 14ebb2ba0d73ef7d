"""Memory of the server during a run: samples of every tenant over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from mirage.errors import CommandFailed
from mirage.samples import SCHEMA_VERSION, Sample, TenantSample, TenantShape
from mirage.tools.replay.policies import name_of
from mirage.units import ceil_div

T = TypeVar("T")
N = TypeVar("N", int, float)

MAX_POINTS = 2000
"""A report keeps at most this many samples; figures are taken before thinning."""


class TimelineError(CommandFailed):
    """The server's account of its memory cannot be understood; one line says why."""


class RecordedTimeline(msgspec.Struct, frozen=True):
    """Samples in order of time; `device_bytes` is what all tenants share."""

    samples: list[Sample]
    device_bytes: int
    tenants: dict[str, TenantShape]
    schema_version: int
    next_since: float | None = None
    """Value of `since` for the next page; None with the newest sample."""


class ReplayState(Sample, frozen=True):
    """The newest sample, with the policy that is being served."""

    policy: str = "server"
    host_pool: dict[str, Any] | None = None
    """State of the host pool, of a server with tiers below its device."""

    @property
    def name(self) -> str:
        """Name of the report's column."""
        return name_of(self.policy, self.host_pool is not None)


def parse_timeline(body: bytes) -> RecordedTimeline:
    """Raises `TimelineError` for another schema version or missing fields."""
    timeline = _decode(body, RecordedTimeline)
    if timeline.schema_version != SCHEMA_VERSION:
        raise TimelineError(
            f"the server's timeline has schema version {timeline.schema_version}, this replay "
            f"reads version {SCHEMA_VERSION}: use the same release for both"
        )
    return timeline


def joined(pages: Sequence[RecordedTimeline]) -> RecordedTimeline:
    """The pages of one timeline, in order, as one. The last one knows all tenants."""
    samples = [sample for page in pages for sample in page.samples]
    return msgspec.structs.replace(pages[-1], samples=samples, next_since=None)


def parse_state(body: bytes) -> ReplayState:
    """Raises `TimelineError`."""
    return _decode(body, ReplayState)


def cut(timeline: RecordedTimeline, first: Sample, last: Sample) -> RecordedTimeline:
    """The part from `first` to `last`, both included even if not kept, times from `first`."""
    inside = [sample for sample in timeline.samples if first.t < sample.t < last.t]
    samples = [Sample(sample.t - first.t, sample.tenants) for sample in (first, *inside, last)]
    return msgspec.structs.replace(timeline, samples=samples)


def only(timeline: RecordedTimeline, name: str) -> RecordedTimeline:
    """The same moments with one tenant in them."""
    samples = [
        Sample(sample.t, {name: sample.tenants[name]} if name in sample.tenants else {})
        for sample in timeline.samples
    ]
    return msgspec.structs.replace(timeline, samples=samples)


def growth(timeline: RecordedTimeline, total: Callable[[TenantSample], N]) -> dict[str, N]:
    """Growth of a total that never falls, for each tenant, from its first sample on."""
    first: dict[str, N] = {}
    last: dict[str, N] = {}
    for sample in timeline.samples:
        for name, tenant in sample.tenants.items():
            last[name] = total(tenant)
            first.setdefault(name, last[name])
    return {name: last[name] - first[name] for name in last}


def peak(timeline: RecordedTimeline, value: Callable[[TenantSample], int]) -> int:
    """The most that all tenants together had at one moment."""
    return max((sum(map(value, s.tenants.values())) for s in timeline.samples), default=0)


def columns(timeline: RecordedTimeline) -> dict[str, object]:
    """For the report: one list of times, and one list per tenant and field (None: absent)."""
    step = ceil_div(len(timeline.samples), MAX_POINTS) or 1
    samples = timeline.samples[::step]
    fields = TenantSample.__struct_fields__
    return {
        "t": [round(sample.t, 3) for sample in samples],
        "tenants": {
            name: {field: [_get(sample, name, field) for sample in samples] for field in fields}
            for name in timeline.tenants
        },
        "device_bytes": timeline.device_bytes,
        "shapes": msgspec.to_builtins(timeline.tenants),
    }


def _get(sample: Sample, name: str, field: str) -> float | None:
    tenant = sample.tenants.get(name)
    return None if tenant is None else getattr(tenant, field)


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise TimelineError(f"the server's memory figures are not understood: {error}") from None
