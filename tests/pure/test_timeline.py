"""The server's recorder: what is kept, and how it stays small."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.protocol import Report
from mirage.samples import INTERVAL_S
from mirage.serve.timeline import FIELDS, Timeline, snapshot

pytestmark = pytest.mark.pure


def report(alpha: int) -> Report:
    return Report(3, True, 1000, alpha, 2, 5, 4, running=6, waiting=7, kv_blocks=8, stall_s=0.5)


def test_a_snapshot_has_the_fields_of_the_published_schema() -> None:
    published = {"kv_blocks", "kv_used_blocks", "alpha", "beta", "running", "waiting"}
    published |= {"held_bytes", "preemptions", "bytes_streamed", "stall_s"}
    assert published <= set(FIELDS) == set(snapshot(report(1)))
    assert snapshot(report(9))["alpha"] == 9


def test_samples_are_kept_in_order_with_absent_tenants_absent() -> None:
    timeline = Timeline()
    timeline.record(0.0, {})
    timeline.record(0.1, {"a": report(1)})
    assert [(s["t"], list(s["tenants"])) for s in timeline.samples] == [(0.0, []), (0.1, ["a"])]
    assert timeline.newest == timeline.samples[-1]


@given(st.integers(2, 9), st.integers(1, 300))
def test_memory_is_bounded_and_the_whole_run_stays_covered(capacity: int, count: int) -> None:
    timeline = Timeline(capacity)
    for i in range(count):
        timeline.record(i * INTERVAL_S, {"a": report(i)})
        assert len(timeline.samples) <= capacity
    times = [round(s["t"] / INTERVAL_S) for s in timeline.samples]
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
    assert timeline.newest["tenants"]["a"]["alpha"] == count - 1


def test_what_was_handed_out_does_not_change() -> None:
    timeline = Timeline()
    before = timeline.samples
    timeline.record(0.0, {})
    assert before == []


def test_a_timeline_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity is 1"):
        Timeline(1)
