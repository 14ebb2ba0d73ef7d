"""Value of --trace: one trace whose requests are dealt to the tenants, or one trace for each
tenant, merged by time.
"""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections import Counter
from itertools import islice, pairwise

import pytest

from mirage.config import ConfigError, Traffic
from mirage.tools.replay.preparation import PlanError, ReplayOptions, settle
from mirage.workload.calls import Calls, clipped, tenants
from mirage.workload.chosen import chosen, located
from mirage.workload.dealing import TenantRequest, assign
from mirage.workload.trace import AS_IT_SAYS, Reading, TraceError, read
from traces import SAMPLE

pytestmark = pytest.mark.pure

NAMES = ["a", "b"]
SYNTHETIC = "kind: synthetic\nrate: {rate}\nlengths: short\n"


@pytest.fixture
def files(tmp_path):
    """Folder with two synthetic traces without an end, of 2 and of 20 requests per second."""
    for name, rate in (("one", 2), ("two", 20)):
        (tmp_path / f"{name}.yaml").write_text(SYNTHETIC.format(rate=rate))
    return tmp_path


def requests(text, how=AS_IT_SAYS, window=None, limit=None, skipped=None):
    which = chosen(text, NAMES)
    counted = Counter() if skipped is None else skipped
    return which.requests(NAMES, Traffic(), 3, how, window, limit, counted)


def test_sample_and_files():
    assert located("sample") == SAMPLE
    assert chosen("sample", NAMES).shared == SAMPLE
    assert str(located("some/where.csv")) == "some/where.csv"


def test_one_trace_is_dealt_by_the_rule():
    found = list(requests("sample"))
    rows = list(read(SAMPLE))
    assert [request for _, request in found] == rows
    names = list(assign([row.arrival_s for row in rows], NAMES, Traffic(), 3))
    assert [name for name, _ in found] == names


def test_a_trace_for_each_tenant_merged_by_time(files):
    text = f"a={files / 'one.yaml'}, b={files / 'two.yaml'}"
    found = list(requests(text, limit=2000))
    assert len(found) == 2000
    times = [request.arrival_s for _, request in found]
    assert times == sorted(times)
    for name, file in (("a", "one"), ("b", "two")):
        mine = [request for to, request in found if to == name]
        alone = islice(read(files / f"{file}.yaml", Reading(bounded=True)), len(mine))
        assert mine == list(alone)
    assert 5 < Counter(to for to, _ in found)["b"] / Counter(to for to, _ in found)["a"] < 20


def test_a_window_is_one_of_each_trace(files):
    text = f"b={files / 'two.yaml'},a={files / 'one.yaml'}"
    found = list(requests(text, window=(10.0, 30.0)))
    assert {name for name, _ in found} == {"a", "b"}
    assert max(request.arrival_s for _, request in found) < 20.0
    assert 250 < len(found) < 650


def test_a_tenant_without_a_trace_gets_nothing(files):
    found = list(requests(f"b={files / 'two.yaml'}", limit=50))
    assert {name for name, _ in found} == {"b"}


def test_what_all_of_them_skip_is_counted_together(tmp_path):
    path = tmp_path / "x.csv"
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path.write_text(f"{header}\n1,m,4,0,4,l\n2,m,4,4,8,l\n")
    skipped: Counter[str] = Counter()
    assert len(list(requests(f"a={path},b={path}", skipped=skipped))) == 2
    assert list(skipped.values()) == [2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("c=x.csv", "no tenant is named 'c': choose from a, b"),
        ("a=x.csv,y.csv", "'y.csv' is no TENANT=FILE"),
        ("a=", "'a=' is no TENANT=FILE"),
        ("a=x.csv,a=y.csv", "tenant 'a' has two traces"),
        ("a=burstgpt-1", "mirage traces fetch burstgpt-1"),
    ],
)
def test_what_names_no_trace_is_one_line(text, says, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(TraceError) as caught:
        chosen(text, NAMES)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_with_an_equals_sign_is_a_file(tmp_path):
    path = tmp_path / "rate=2.yaml"
    path.write_text(SYNTHETIC.format(rate=2))
    assert chosen(str(path), NAMES).shared == path


# Calls, which are made and not held.


@pytest.fixture
def settled(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(
        "device: {memory: 1GiB}\n"
        "tenants: [{name: a, model: m, share: 50, max_model_len: 300}, "
        "{name: b, model: m, share: 50, max_model_len: 300}]\n"
    )

    def settled(trace: str | None, **options):
        if (more := options.pop("config", None)) is not None:
            config.write_text(config.read_text() + more)
        return settle(config, ReplayOptions(trace=trace, output=tmp_path / "out", **options))

    return settled


def test_calls_are_the_same_each_time(settled, files):
    calls = settled(f"a={files / 'one.yaml'},b={files / 'two.yaml'}", limit=300).calls
    assert isinstance(calls, Calls)
    first, again = list(calls), list(calls)
    assert first == again and len(first) == len(calls) == 300
    assert [call.index for call in first] == list(range(300))
    assert clipped(calls) == clipped(first) == sum(call.clipped for call in first) > 0
    assert sorted(tenants(calls)) == sorted(tenants(first)) == NAMES
    assert first[7] in calls and 7 not in calls


def test_damage_at_the_end_is_found_before_anything_starts(settled, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(SAMPLE.read_text() + "\nnow,1,1\n")
    with pytest.raises(TraceError, match="line 602: timestamp 'now'"):
        settled(str(path))
    assert len(settled(str(path), limit=600).calls) == 600


def test_a_pipe_is_read_once(settled, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    feeder = threading.Thread(target=pipe.write_bytes, args=(SAMPLE.read_bytes(),))
    feeder.start()
    calls = settled(str(pipe)).calls
    feeder.join()
    assert list(calls) == list(calls) == list(settled("sample").calls)


def test_skipped_rows_are_counted_once_however_often_one_goes_through(settled, tmp_path):
    path = tmp_path / "x.csv"
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path.write_text(f"{header}\n1,m,4,0,4,l\n2,m,4,4,8,l\n")
    plan = settled(str(path))
    for _ in range(2):
        assert len(list(plan.calls)) == 1
    assert list(plan.setting.skipped.values()) == [1]


def test_a_trace_without_end_needs_a_bound(settled, files):
    with pytest.raises(TraceError, match="has no end"):
        settled(f"a={files / 'one.yaml'}")
    assert len(settled(f"a={files / 'one.yaml'}", window=(0.0, 30.0)).calls) > 20
    with pytest.raises(PlanError, match="use a whole number from 1"):
        settled(f"a={files / 'one.yaml'}", limit=0)


def test_lengths_of_turns_are_scaled_together(settled, tmp_path):
    path = tmp_path / "talk.yaml"
    asked = "sessions: {turns: 3, think_s: 1}\nprefixes: {count: 2, tokens: 100}\nrequests: 200\n"
    path.write_text(SYNTHETIC.format(rate=5) + asked)
    calls: list[TenantRequest] = list(settled(str(path), length_scale=0.1).calls)
    assert {call.hash_tokens for call in calls} == {10.0}
    assert {call.prefix_hashes for call in calls} == {(0,), (1,)}
    assert all(call.session for call in calls)


def test_however_many_calls_there_are_few_are_held(settled, tmp_path):
    path = tmp_path / "many.csv"
    rows = (f"2023-11-16 18:{n // 60:02d}:{n % 60:02d},9,9" for n in range(3600))
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    plan = settled(str(path))

    def peak(go_through) -> int:
        tracemalloc.start()
        assert go_through(plan.calls) == 3600
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    made = peak(lambda calls: max(call.index for call in calls) + 1)
    held = peak(lambda calls: len(list(calls)))
    assert made < held / 3, (made, held)  # what is read at once is most of the first


# A rate of a trace that has arrivals.


def gaps(plan) -> list[float]:
    arrivals = [call.at_s for call in plan.calls]
    return [after - before for before, after in pairwise(arrivals)]


def test_a_rate_stretches_all_gaps_alike(settled):
    own, fast = settled("sample", limit=200), settled("sample", limit=200, rate=50.0)
    assert sum(gaps(fast)) == pytest.approx(199 / 50)
    assert gaps(fast) == pytest.approx([gap * fast.setting.time_scale for gap in gaps(own)])
    assert fast.setting.rate == 50
    assert [c.tenant for c in fast.calls] == [c.tenant for c in own.calls], "dealt as before"


def test_a_rate_is_that_of_the_window_and_instead_of_the_configuration_s_scale(settled):
    plan = settled("sample", window=(60.0, 300.0), rate=7.0, config="replay: {time_scale: 0.5}\n")
    assert (len(plan.calls) - 1) / sum(gaps(plan)) == pytest.approx(7)


def test_the_rate_of_tenants_own_traces_is_that_of_all_together(settled, files):
    both = f"a={files / 'one.yaml'},b={files / 'two.yaml'}"
    own, slow = settled(both, limit=300), settled(both, limit=300, rate=0.5)
    assert sum(gaps(slow)) == pytest.approx(299 / 0.5)
    assert [c.tenant for c in slow.calls] == [c.tenant for c in own.calls]


def test_a_rate_for_traces_with_and_without_arrivals_is_refused(settled, files, tmp_path):
    (tmp_path / "custom.jsonl").write_text('{"prompt": "abcd"}\n')
    with pytest.raises(TraceError, match=r"one.yaml has arrivals .* and .*custom.jsonl has"):
        settled(f"a={files / 'one.yaml'},b={tmp_path / 'custom.jsonl'}", rate=2.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e7, float("nan")])
def test_a_rate_that_is_none(settled, rate):
    with pytest.raises(TraceError, match="use requests a second, above 0"):
        settled("sample", rate=rate)


# Traces that the configuration names.


def test_a_configuration_names_its_trace_beside_itself(settled, tmp_path, files):
    (tmp_path / "own.yaml").write_text((files / "one.yaml").read_text())
    plan = settled(None, limit=20, config="replay: {trace: own.yaml}\n")
    assert plan.setting.trace == "own.yaml"
    assert list(plan.calls) == list(settled(str(files / "one.yaml"), limit=20).calls)


def test_a_configuration_names_a_trace_for_each_tenant(settled, tmp_path, files):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text((files / f"{name}.yaml").read_text())
    plan = settled(None, limit=300, config="replay: {trace: {a: one.yaml, b: two.yaml}}\n")
    assert plan.setting.trace == "a=one.yaml,b=two.yaml"
    named = settled(f"a={files / 'one.yaml'},b={files / 'two.yaml'}", limit=300)
    assert list(plan.calls) == list(named.calls)
    assert settled("sample", limit=3).setting.trace == "sample", "an option comes first"


def test_without_a_name_it_is_the_sample(settled):
    assert settled(None, limit=3).setting.trace == "sample"


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("{c: x.csv}", "replay.trace for 'c': no such tenant, choose from a, b"),
        ("{}", "replay.trace is empty: name a trace"),
        ("''", "replay.trace is empty: name a trace"),
        ("{a: ''}", "replay.trace for 'a' is empty: name a file"),
        ("[x.csv]", "replay.trace"),
    ],
)
def test_a_name_in_a_configuration_that_is_none(settled, named, says):
    with pytest.raises(ConfigError) as caught:
        settled(None, config=f"replay: {{trace: {named}}}\n")
    assert says in str(caught.value) and "\n" not in str(caught.value)
