"""The server's timeline of samples: kept in bounded memory, and told in pages."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.config import Policy
from mirage.protocol import Report
from mirage.samples import INTERVAL_S
from mirage.serve.api.openai import ApiError
from mirage.serve.registry import history
from mirage.serve.registry.registry import Registry
from mirage.serve.registry.timeline import (
    FIELDS,
    MOST_BYTES,
    PAGE_BYTES,
    PAGE_SAMPLES,
    Page,
    Timeline,
    snapshot,
)
from mirage.units import KIB

pytestmark = pytest.mark.pure


def report(layers_remapped: int) -> Report:
    return Report(
        3, True, 1000, layers_remapped, 2, 5, 4, running=6, waiting=7, kv_blocks=8, stall_s=0.5
    )


def read(page: Page) -> list[dict[str, Any]]:
    return json.loads(msgspec.json.encode(page.samples))


def kept(timeline: Timeline, limit: int = PAGE_SAMPLES) -> list[dict[str, Any]]:
    """Samples of all pages of the timeline."""
    page = timeline.page(limit=limit)
    samples = read(page)
    while page.next_since is not None:
        assert page.next_since == samples[-1]["t"]
        page = timeline.page(page.next_since, limit)
        assert page.samples, "a page was announced"
        samples += read(page)
    return samples


def test_a_snapshot_has_the_fields_of_the_published_schema() -> None:
    published = {
        "kv_blocks",
        "kv_used_blocks",
        "layers_remapped",
        "stream_slots",
        "running",
        "waiting",
    }
    published |= {"held_bytes", "preemptions", "bytes_streamed", "stall_s"}
    assert published <= set(FIELDS) == set(snapshot(report(1)))
    assert snapshot(report(9))["layers_remapped"] == 9


def test_samples_are_kept_in_order_with_absent_tenants_absent() -> None:
    timeline = Timeline()
    timeline.record(0.0, {})
    timeline.record(0.1, {"a": report(1)})
    assert [(s["t"], list(s["tenants"])) for s in kept(timeline)] == [(0.0, []), (0.1, ["a"])]
    assert timeline.newest == kept(timeline)[-1]


@given(st.integers(2, 9), st.integers(1, 300))
def test_memory_is_bounded_and_the_whole_run_stays_covered(capacity: int, count: int) -> None:
    timeline = Timeline(capacity)
    for i in range(count):
        timeline.record(i * INTERVAL_S, {"a": report(i)})
        assert len(timeline.page().samples) <= capacity
    times = [round(s["t"] / INTERVAL_S) for s in kept(timeline)]
    assert times[0] == 0
    assert times == sorted(set(times))
    # Samples are halved whenever there are too many: the smallest power of two with which all find
    # room, or the next one.
    stride = 2 * 2 ** next(k for k in range(20) if count <= capacity * 2**k)
    # No gap is wider than one stride, up to the newest sample.
    assert max((b - a for a, b in zip(times, [*times[1:], count - 1], strict=True)), default=0) <= (
        stride
    )
    assert len(times) > min(count, capacity) / 2 - 1
    assert timeline.newest["tenants"]["a"]["layers_remapped"] == count - 1


def test_what_was_handed_out_does_not_change() -> None:
    timeline = Timeline()
    before = timeline.page()
    timeline.record(0.0, {})
    assert before == Page([], None)


def test_a_timeline_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity is 1"):
        Timeline(1)


@given(st.integers(1, 40), st.integers(1, 12), st.floats(-1, 5))
def test_pages_are_all_of_it_once_whatever_their_size(count: int, limit: int, since: float) -> None:
    timeline = Timeline()
    for i in range(count):
        timeline.record(i * INTERVAL_S, {"a": report(i)})
    assert len(timeline.page(since, limit).samples) <= limit
    assert [s["tenants"]["a"]["layers_remapped"] for s in kept(timeline, limit)] == list(
        range(count)
    )
    later = [i for i in range(count) if i * INTERVAL_S > since]
    remapped_counts = [s["tenants"]["a"]["layers_remapped"] for s in read(timeline.page(since))]
    assert remapped_counts == later, "the second that was asked for is not among them"


@pytest.fixture(scope="module")
def full() -> Timeline:
    """Timeline of ten tenants that was recorded for so long that it has its greatest size."""
    timeline = Timeline()
    reports = {f"tenant-{i}": report(i) for i in range(10)}
    for i in range(40_000):
        timeline.record(i * INTERVAL_S, reports)
    return timeline


def test_a_page_is_small_however_many_tenants_there_are(full: Timeline) -> None:
    """A page of a full timeline of ten tenants is about `PAGE_BYTES` long, so making and sending it
    takes little time.
    """
    registry = Registry(Policy.MIRAGE, 1, {}, timeline=full)
    told = history.encoded(registry.history())
    assert PAGE_BYTES / 2 < len(told) < PAGE_BYTES + 64 * KIB
    assert json.loads(told)["next_since"] == json.loads(told)["samples"][-1]["t"]


def test_all_samples_together_are_bounded_in_bytes(full: Timeline) -> None:
    samples = kept(full)
    assert MOST_BYTES / 3 < sum(len(msgspec.json.encode(s)) for s in samples) <= MOST_BYTES
    assert (samples[0]["t"], samples[-1]["t"] > 3900) == (0.0, True)


def test_a_sample_that_is_larger_than_a_page_is_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.serve.registry.timeline.PAGE_BYTES", 10)
    timeline = Timeline()
    for i in range(3):
        timeline.record(float(i), {"a": report(i)})
    assert len(timeline.page().samples) == 1
    assert len(kept(timeline)) == 3


def test_what_is_asked_for() -> None:
    assert history.asked_for({}) == (None, PAGE_SAMPLES)
    assert history.asked_for({"since": "1.5", "limit": "2"}) == (1.5, 2)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"since": "nan"}, "since='nan': give the seconds of a sample's t"),
        ({"since": ""}, "since='': give"),
        ({"limit": "0"}, "limit='0': give 1 to 1000 samples"),
        ({"limit": "1001"}, "limit='1001': give"),
        ({"limit": "x"}, "limit='x': give"),
    ],
)
def test_what_cannot_be_asked_for(query: dict[str, str], says: str) -> None:
    with pytest.raises(ApiError, match=says) as raised:
        history.asked_for(query)
    assert raised.value.status == 400
