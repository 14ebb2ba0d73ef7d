"""Metrics and timeline figures of a replay against values computed by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.samples import Sample, TenantSample, TenantShape
from mirage.tools.replay.client import Outcome
from mirage.tools.replay.metrics import latencies_ms, summarize
from mirage.tools.replay.timeline import (
    MAX_POINTS,
    RecordedTimeline,
    TimelineError,
    columns,
    cut,
    growth,
    joined,
    only,
    parse_state,
    parse_timeline,
    peak,
)
from mirage.tools.replay.trail import NOTHING
from mirage.workload.dealing import TenantRequest

pytestmark = pytest.mark.pure


def outcome(ttft, *itl, tokens=None, error=None, prompt=10) -> Outcome:
    call = TenantRequest(0, 0.0, "a", prompt, 5, False)
    count = len(itl) + 1 if tokens is None else tokens
    return Outcome(call, 0, 0, 0, ttft, ttft + sum(itl), itl, prompt, count, NOTHING, error)


OUTCOMES = [
    outcome(0.1, 0.01, 0.03),
    outcome(0.3, 0.02, tokens=3),
    outcome(0.5),
    outcome(9.0, 9.0, error="broken"),
]


def test_latencies():
    found = latencies_ms(OUTCOMES)
    assert found["ttft_ms"] == pytest.approx([100, 300, 500])
    assert found["e2el_ms"] == pytest.approx([140, 320, 500])
    assert found["itl_ms"] == pytest.approx([10, 30, 20])
    assert found["tpot_ms"] == pytest.approx([20, 10]), "one token has no time per further token"


def test_summary():
    found = summarize(OUTCOMES, duration_s=2.0)
    assert {key: found[key] for key in ("requests", "completed", "failed", "duration")} == {
        "requests": 4,
        "completed": 3,
        "failed": 1,
        "duration": 2.0,
    }
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (30, 7)
    assert (found["request_throughput"], found["output_throughput"]) == (1.5, 3.5)
    assert (found["mean_ttft_ms"], found["p50_ttft_ms"]) == (300.0, 300.0)
    assert found["p99_ttft_ms"] == pytest.approx(496.0), "linear: 300 + 0.98 * 200"
    assert (found["mean_tpot_ms"], found["p50_tpot_ms"]) == (15.0, 15.0)
    assert found["p99_tpot_ms"] == pytest.approx(19.9)
    assert (found["mean_itl_ms"], found["p50_itl_ms"]) == (20.0, 20.0)
    assert (found["mean_e2el_ms"], found["p50_e2el_ms"]) == (320.0, 320.0)


def test_nothing_measured_is_none_and_not_zero():
    found = summarize([outcome(1.0, error="refused")], 0.0)
    assert (found["completed"], found["failed"], found["request_throughput"]) == (0, 1, 0.0)
    assert found["mean_ttft_ms"] is found["p99_itl_ms"] is None
    assert summarize([outcome(1.0)], 1.0)["mean_tpot_ms"] is None


positive = st.floats(1e-6, 100)
some = st.lists(st.builds(outcome, positive, positive, positive), min_size=1, max_size=20)


@given(outcomes=some)
def test_statistics_lie_within_their_values(outcomes):
    found = summarize(outcomes, 1.0)
    for name, values in latencies_ms(outcomes).items():
        low, high = min(values) - 1e-3, max(values) + 1e-3
        assert low <= found[f"mean_{name}"] <= high
        assert low <= found[f"p50_{name}"] <= found[f"p99_{name}"] + 1e-3 <= high + 1e-3


def tenant(**fields) -> TenantSample:
    return TenantSample(**{**dict.fromkeys(TenantSample.__struct_fields__, 0), **fields})


SHAPE = TenantShape(layers=12, layer_bytes=100, extent_bytes=10, extent_blocks=1)
TIMELINE = RecordedTimeline(
    samples=[
        Sample(9.0, {"a": tenant(preemptions=1)}),
        Sample(10.0, {"a": tenant(preemptions=2, kv_blocks=10, layers_remapped=1)}),
        Sample(11.0, {"a": tenant(preemptions=4, kv_blocks=30), "b": tenant(preemptions=5)}),
        Sample(
            12.0,
            {
                "a": tenant(preemptions=4, layers_remapped=2),
                "b": tenant(preemptions=8, layers_remapped=3),
            },
        ),
        Sample(13.0, {"a": tenant(preemptions=9, kv_blocks=99)}),
    ],
    device_bytes=1000,
    tenants={"a": SHAPE, "b": SHAPE},
    schema_version=3,
)


def test_cut_takes_the_run_and_its_first_sample_is_the_baseline():
    part = cut(TIMELINE, TIMELINE.samples[1], TIMELINE.samples[3])
    assert [sample.t for sample in part.samples] == [0.0, 1.0, 2.0]
    assert growth(part, lambda sample: sample.preemptions) == {"a": 2, "b": 3}
    assert peak(part, lambda sample: sample.layers_remapped) == 5
    assert peak(part, lambda sample: sample.kv_blocks) == 30


def test_one_tenant_alone():
    part = only(TIMELINE, "b")
    assert growth(part, lambda sample: sample.preemptions) == {"b": 3}
    assert peak(part, lambda sample: sample.layers_remapped) == 3


def test_ends_that_the_server_no_longer_keeps_are_part_of_the_run():
    first, last = (
        Sample(10.5, {"a": tenant(layers_remapped=7)}),
        Sample(11.5, {"a": tenant(layers_remapped=9)}),
    )
    part = cut(TIMELINE, first, last)
    assert [sample.t for sample in part.samples] == [0.0, 0.5, 1.0]
    assert growth(part, lambda sample: sample.layers_remapped) == {"a": 2, "b": 0}


def test_peak_of_nothing():
    assert peak(RecordedTimeline([], 1, {}, 1), lambda sample: sample.layers_remapped) == 0


def test_columns():
    found = columns(cut(TIMELINE, TIMELINE.samples[1], TIMELINE.samples[3]))
    assert found["t"] == [0.0, 1.0, 2.0]
    assert found["tenants"]["a"]["layers_remapped"] == [1, 0, 2]
    assert found["tenants"]["b"]["layers_remapped"] == [None, 0, 3]
    assert (found["device_bytes"], found["shapes"]["a"]["layers"]) == (1000, 12)
    json.dumps(found)


@pytest.mark.parametrize("count", [1, MAX_POINTS, MAX_POINTS + 1, 5 * MAX_POINTS])
def test_columns_are_thinned(count):
    samples = [Sample(float(t), {"a": tenant()}) for t in range(count)]
    found = columns(RecordedTimeline(samples, 1, {"a": SHAPE}, 1))
    assert min(count, MAX_POINTS) / 2 <= len(found["t"]) <= MAX_POINTS
    assert len(found["tenants"]["a"]["stream_slots"]) == len(found["t"])


FIELDS = dict.fromkeys(TenantSample.__struct_fields__, 1)
SERVED = {
    "schema_version": 3,
    "samples": [{"t": 0.5, "tenants": {"a": FIELDS}, "news": True}],
    "device_bytes": 5,
    "tenants": {"a": {"layers": 1, "layer_bytes": 2, "extent_bytes": 3, "extent_blocks": 4}},
}


def test_the_servers_json_is_read():
    found = parse_timeline(json.dumps(SERVED).encode())
    assert found.samples == [Sample(0.5, {"a": TenantSample(**FIELDS)})]
    state = parse_state(json.dumps({**SERVED["samples"][0], "policy": "pooled"}).encode())
    assert (state.t, state.policy, state.name) == (0.5, "pooled", "pooled")
    tiered = {**SERVED["samples"][0], "policy": "mirage", "host_pool": {"blocks": 3}}
    assert parse_state(json.dumps(tiered).encode()).name == "mirage-tiers"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 2}, "schema version 2, this replay reads version 3: use the same"),
        ({"device_bytes": "much"}, r"Expected `int`, got `str` - at `\$.device_bytes`"),
        ({"samples": [{"t": 1, "tenants": {"a": {}}}]}, "missing required field `kv_blocks`"),
    ],
)
def test_json_of_another_kind_is_refused(change, says):
    with pytest.raises(TimelineError, match=says):
        parse_timeline(json.dumps({**SERVED, **change}).encode())


def test_pages_are_one_timeline():
    pages = [
        parse_timeline(json.dumps(page).encode())
        for page in (
            {**SERVED, "next_since": 0.5, "tenants": {}},
            {**SERVED, "next_since": None, "samples": []},
        )
    ]
    assert [page.next_since for page in pages] == [0.5, None]
    whole = joined(pages)
    assert whole.samples == [Sample(0.5, {"a": TenantSample(**FIELDS)})]
    assert (list(whole.tenants), whole.next_since) == (["a"], None)


def test_no_json_is_refused():
    with pytest.raises(TimelineError, match="not understood"):
        parse_state(b"<html>")
