"""Memory of a server during a run: samples of all tenants over time."""

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
"""Most samples that a report keeps; figures are computed before thinning."""


class TimelineError(CommandFailed):
    """The server's memory figures are invalid; the message is one line."""


class RecordedTimeline(msgspec.Struct, frozen=True):
    """Timeline of a server, or one page of it, as `/mirage/timeline` answers: samples in order of
    time. `device_bytes` is the memory that all tenants share.
    """

    samples: list[Sample]
    device_bytes: int
    tenants: dict[str, TenantShape]
    schema_version: int
    next_since: float | None = None
    """Value of `since` for the next page; None if this page has the newest sample."""


class ReplayState(Sample, frozen=True):
    """State of a server, as ``GET /mirage/state`` answers: its newest sample, and its policy."""

    policy: str = "server"
    host_pool: dict[str, Any] | None = None
    """State of the host pool; None for a server without tiers."""

    @property
    def name(self) -> str:
        """Name of the report's column."""
        return name_of(self.policy, self.host_pool is not None)


def parse_timeline(body: bytes) -> RecordedTimeline:
    """Timeline, or one page of it, in the body of an answer to ``GET /mirage/timeline``. Raises
    `TimelineError` for another schema version, and for missing or invalid fields.
    """
    timeline = _decode(body, RecordedTimeline)
    if timeline.schema_version != SCHEMA_VERSION:
        raise TimelineError(
            f"the server's timeline has schema version {timeline.schema_version}, this replay "
            f"reads version {SCHEMA_VERSION}: use the same release for both"
        )
    return timeline


def joined(pages: Sequence[RecordedTimeline]) -> RecordedTimeline:
    """The pages of one timeline, in order, as one. Tenants are those of the last page."""
    samples = [sample for page in pages for sample in page.samples]
    return msgspec.structs.replace(pages[-1], samples=samples, next_since=None)


def parse_state(body: bytes) -> ReplayState:
    """State in the body of an answer to ``GET /mirage/state``, which has one sample. Raises
    `TimelineError` for missing or invalid fields.
    """
    return _decode(body, ReplayState)


def cut(timeline: RecordedTimeline, first: Sample, last: Sample) -> RecordedTimeline:
    """The part of a timeline from `first` to `last`, which are both included; times count from
    `first`.
    """
    inside = [sample for sample in timeline.samples if first.t < sample.t < last.t]
    samples = [Sample(sample.t - first.t, sample.tenants) for sample in (first, *inside, last)]
    return msgspec.structs.replace(timeline, samples=samples)


def only(timeline: RecordedTimeline, name: str) -> RecordedTimeline:
    """Timeline with the samples of only one tenant."""
    samples = [
        Sample(sample.t, {name: sample.tenants[name]} if name in sample.tenants else {})
        for sample in timeline.samples
    ]
    return msgspec.structs.replace(timeline, samples=samples)


def growth(timeline: RecordedTimeline, total: Callable[[TenantSample], N]) -> dict[str, N]:
    """Growth of a counter for each tenant, from its first sample to its last."""
    first: dict[str, N] = {}
    last: dict[str, N] = {}
    for sample in timeline.samples:
        for name, tenant in sample.tenants.items():
            last[name] = total(tenant)
            first.setdefault(name, last[name])
    return {name: last[name] - first[name] for name in last}


def peak(timeline: RecordedTimeline, value: Callable[[TenantSample], int]) -> int:
    """Largest sum of a value over all tenants in any sample."""
    return max((sum(map(value, s.tenants.values())) for s in timeline.samples), default=0)


def columns(timeline: RecordedTimeline) -> dict[str, object]:
    """Columns for the report: a list of times, and a list for each tenant and field; None while a
    tenant is absent.
    """
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
