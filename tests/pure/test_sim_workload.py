"""Requests drawn from a seed, and those that a trace gives: when they come, how long they are."""

from __future__ import annotations

import json
import tracemalloc
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mirage.config import ConfigError, Traffic
from mirage.simulate import workload
from mirage.simulate.experiment import Experiment, Setup, Silence
from mirage.simulate.roofline import PS
from mirage.workload import trace
from mirage.workload.dealing import assign, clip
from tests.examples import examples

pytestmark = pytest.mark.pure

RATES = {"a": 6.0, "b": 3.0, "c": 1.0}


def setup(rates=RATES, max_model_len=2048, **asked) -> Setup:
    drawn = asked.get("arrivals") != "trace"
    tenants = [
        {"name": name, "model": "llama-3-8b", "share": 90 / len(rates)}
        | ({"rate": rate} if drawn else {})
        for name, rate in rates.items()
    ]
    limits = {"max_model_len": max_model_len}
    raw = {"title": "t", "tenants": tenants, "limits": limits}
    if asked.get("arrivals") not in ("trace", "windows"):
        asked.pop("file", None)
    return Setup(Experiment.model_validate(raw | {"workload": {"requests": 300} | asked}))


def drawn(setup: Setup, seed=0) -> dict[str, list[tuple[int, int, int]]]:
    """Drawn requests of each tenant: (arrival in picoseconds, prompt tokens, output tokens)."""
    found = workload.requests(setup, seed)
    return {name: [(r.arrival, r.prompt, r.output) for r in each] for name, each in found.items()}


def azure(path, rows) -> None:
    """Write a file in the format of Azure's trace, from rows of (seconds, context tokens, output
    tokens).
    """
    start = datetime(2023, 11, 16, 18, tzinfo=UTC)
    with path.open("w", newline="") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\r\n")
        for seconds, context, output in rows:
            stamp = start + timedelta(seconds=round(seconds, 6))
            file.write(f"{stamp:%Y-%m-%d %H:%M:%S.%f}0,{context},{output}\r\n")


@pytest.fixture
def bursts(tmp_path):
    """File in Azure's format with 400 rows over some five minutes, whose gaps all differ."""
    path, time, rows = tmp_path / "bursts.csv", 0.0, []
    rng = np.random.default_rng(4)
    for gap in rng.exponential(0.7, 400):
        rows.append((time, int(rng.integers(1, 3000)), int(rng.integers(1, 900))))
        time += float(gap)
    azure(path, rows)
    return path


def test_nobody_asks_a_silent_tenant_for_anything() -> None:
    made = setup({"a": 6.0, "b": 3.0})
    quiet = Silence(from_s=10, for_s=100)
    tenants = [
        t.model_copy(update={"silence": quiet if t.name == "a" else None})
        for t in made.experiment.tenants
    ]
    silent = Setup(made.experiment.model_copy(update={"tenants": tenants}))
    loud, still = drawn(made), drawn(silent)
    assert still["b"] == loud["b"]
    before = [row for row in loud["a"] if row[0] < 10 * PS]
    assert 0 < len(before) < len(loud["a"])
    assert still["a"][: len(before)] == before
    for (late, *tokens), (early, *same) in zip(still["a"], loud["a"], strict=True):
        assert tokens == same
        assert late - early == pytest.approx(0 if early < 10 * PS else 100 * PS, abs=2)


# -- any arrivals -----------------------------------------------------------------------


@pytest.mark.parametrize("arrivals", ["bursty", "poisson", "windows", "trace"])
def test_one_seed_gives_one_workload_and_another_another(bursts, arrivals) -> None:
    made = setup(arrivals=arrivals, file=bursts)
    assert drawn(made, 5) == drawn(made, 5)
    assert drawn(made, 5) != drawn(made, 6)


@pytest.mark.parametrize("arrivals", ["bursty", "poisson", "windows", "trace"])
def test_requests_are_numbered_in_order_of_arrival(bursts, arrivals) -> None:
    for each in workload.requests(setup(arrivals=arrivals, file=bursts), 2).values():
        found = list(each)
        assert [r.number for r in found] == list(range(len(found)))
        assert all(one.arrival <= other.arrival for one, other in pairwise(found))
        assert all(r.arrival >= 0 and r.prompt >= 1 and r.output >= 1 for r in found)


@pytest.mark.parametrize("count", [1, 2, 7, 100, 299])
@pytest.mark.parametrize("arrivals", ["poisson", "windows", "trace"])
def test_there_are_as_many_requests_as_asked(bursts, arrivals, count) -> None:
    found = drawn(setup(arrivals=arrivals, file=bursts, requests=count))
    assert sum(map(len, found.values())) == count


def test_requests_are_shared_by_rate() -> None:
    found = drawn(setup(requests=1000))
    assert {name: len(rows) for name, rows in found.items()} == {"a": 600, "b": 300, "c": 100}


@pytest.mark.parametrize("arrivals", ["bursty", "poisson", "windows"])
@pytest.mark.parametrize("seed", range(3))
def test_the_rate_is_exact_over_the_whole(bursts, arrivals, seed) -> None:
    found = drawn(setup(arrivals=arrivals, file=bursts, requests=500), seed)
    for name, rows in found.items():
        assert rows[-1][0] / PS == pytest.approx(len(rows) / RATES[name], rel=1e-9)


@given(seed=st.integers(), room=st.integers(2, 2000), lengths=st.sampled_from(["sharegpt", "long"]))
@examples(25)
def test_every_request_fits_into_the_context(seed, room, lengths) -> None:
    for rows in drawn(setup(max_model_len=room, lengths=lengths, requests=60), seed).values():
        assert all(prompt + output <= room for _, prompt, output in rows)


def test_a_context_longer_than_the_models_is_not_served() -> None:
    made = setup(max_model_len=10**6)
    assert made.max_len("a") == made.models["a"].max_len == 8192


def test_lengths_have_the_means_of_their_file() -> None:
    found = drawn(setup({"a": 1.0}, requests=20_000, lengths="sharegpt", max_model_len=8192))["a"]
    _, prompt, output = np.mean(found, axis=0)
    expected = workload.lengths("sharegpt")
    assert prompt == pytest.approx(expected.prompt_mean, rel=0.04)
    assert output == pytest.approx(expected.output_mean, rel=0.04)


def test_a_tenant_may_have_lengths_of_its_own() -> None:
    made = setup({"a": 1.0, "b": 1.0}, requests=2000, lengths="short")
    tenants = [
        t.model_copy(update={"lengths": "long" if t.name == "b" else None})
        for t in made.experiment.tenants
    ]
    made.experiment = made.experiment.model_copy(update={"tenants": tenants})
    found = drawn(made)
    means = {name: np.mean([prompt for _, prompt, _ in rows]) for name, rows in found.items()}
    assert 2.5 < means["b"] / means["a"] < 6


def test_other_rates_leave_lengths_as_they_are() -> None:
    slow, fast = (drawn(setup({"a": rate}, requests=50))["a"] for rate in (1.0, 7.0))
    assert [row[1:] for row in slow] == [row[1:] for row in fast]
    assert [round(row[0] / 7) for row in slow] == pytest.approx([row[0] for row in fast], abs=2)


# -- burstiness -------------------------------------------------------------------------


def variation(rows) -> float:
    """Coefficient of variation of the gaps between arrivals in `rows`."""
    gaps = np.diff([arrival for arrival, _, _ in rows])
    return gaps.std() / gaps.mean()


@pytest.mark.parametrize("seed", range(5))
def test_poisson_gaps_vary_as_much_as_their_mean(seed) -> None:
    rows = drawn(setup({"a": 3.0}, arrivals="poisson", requests=3000), seed)["a"]
    assert variation(rows) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_bursty_gaps_vary_much_more(seed) -> None:
    assert variation(drawn(setup({"a": 3.0}, requests=3000), seed)["a"]) > 2


@pytest.mark.parametrize("arrivals", ["poisson", "bursty"])
def test_arrivals_and_lengths_of_each_tenant_and_seed_are_their_own(arrivals) -> None:
    made = setup({"a": 1.0, "b": 1.0}, arrivals=arrivals)
    tables = [rows for seed in (0, 1) for rows in drawn(made, seed).values()]
    for column in (0, 1, 2):
        assert len({tuple(row[column] for row in rows) for rows in tables}) == 4


# -- a window of a trace ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_window_keeps_the_gaps_of_the_file_but_for_their_scale(bursts, seed) -> None:
    times = [request.arrival_s for request in trace.read(bursts)]
    found = drawn(setup({"a": 2.0}, arrivals="windows", file=bursts, requests=600), seed)["a"]
    gaps = np.diff([0, *(row[0] for row in found)])
    inner = np.diff(times)
    laps = np.concatenate([inner, inner, inner])
    fits = [
        start
        for start in range(len(inner))
        if np.allclose(gaps * laps[start] / gaps[0], laps[start : start + 600], 1e-4, 1e-5)
    ]
    assert len(fits) == 1


def test_windows_of_tenants_differ(bursts) -> None:
    found = drawn(setup({"a": 1.0, "b": 1.0}, arrivals="windows", file=bursts))
    assert [row[0] for row in found["a"]] != [row[0] for row in found["b"]]


def test_a_trace_of_one_row_has_no_window(tmp_path) -> None:
    azure(tmp_path / "one.csv", [(0, 5, 5)])
    with pytest.raises(ValueError, match=r"one\.csv"):
        drawn(setup(arrivals="windows", file=tmp_path / "one.csv"))


def test_a_window_may_bring_the_files_lengths(bursts) -> None:
    asked = {"arrivals": "windows", "file": bursts, "lengths": "trace"}
    lengths = {clip(r.context_tokens, r.output_tokens, 2048) for r in trace.read(bursts)}
    assert {row[1:] for row in drawn(setup({"a": 1.0}, **asked))["a"]} <= lengths


# -- a trace ----------------------------------------------------------------------------

traffics = st.builds(
    Traffic,
    phase_s=st.floats(0.5, 100),
    hot_share=st.floats(0, 1),
    weights=st.dictionaries(st.sampled_from("abc"), st.floats(0, 5)),
)


@given(traffic=traffics, seed=st.integers(0, 99), scale=st.sampled_from([1.0, 0.25, 3.0]))
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_trace_is_dealt_as_the_replayer_deals_it(bursts, traffic, seed, scale) -> None:
    rows = list(trace.read(bursts))
    names = list(assign([row.arrival_s for row in rows], list(RATES), traffic, seed))
    asked = traffic.model_dump()
    found = drawn(setup(arrivals="trace", file=bursts, traffic=asked, time_scale=scale), seed)
    for name in RATES:
        assert found[name] == [
            (round(r.arrival_s * scale * PS), *clip(r.context_tokens, r.output_tokens, 2048))
            for r, to in zip(rows[:300], names, strict=False)
            if to == name
        ]


@pytest.fixture
def prompts(tmp_path):
    """File of 400 requests without arrivals, each with a different length."""
    path = tmp_path / "prompts.jsonl"
    rows = ({"prompt": "word" * n, "output_tokens": n} for n in range(1, 401))
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("arrivals", ["trace", "windows"])
def test_requests_without_arrivals_come_at_the_rate_and_by_the_seed(prompts, arrivals) -> None:
    asked = {"arrivals": arrivals, "file": prompts, "requests": 400, "rate": 20.0}
    made = setup({"a": 20.0}, **asked, **({"lengths": "trace"} if arrivals == "windows" else {}))
    found = drawn(made, seed=1)["a"]
    assert 15 < found[-1][0] / PS < 25
    assert found == drawn(made, seed=1)["a"] != drawn(made, seed=2)["a"]
    assert all(prompt == output for _, prompt, output in found)


def test_a_rate_of_a_trace_with_arrivals_scales_its_gaps(bursts) -> None:
    whole = {"arrivals": "trace", "file": bursts}
    own, fast = (drawn(setup(**whole, **more)) for more in ({}, {"rate": 40.0}))
    flat = sorted(row[0] for rows in fast.values() for row in rows)
    assert (len(flat) - 1) / ((flat[-1] - flat[0]) / PS) == pytest.approx(40)
    for name, rows in fast.items():
        assert [row[1:] for row in rows] == [row[1:] for row in own[name]], "dealt as before"
    with pytest.raises(ConfigError, match="both set the gaps of this trace: give one"):
        drawn(setup(**whole, rate=40.0, time_scale=0.5))


def test_a_file_without_arrivals_needs_a_rate(prompts) -> None:
    with pytest.raises(trace.TraceError, match=r"custom has no arrivals: give a rate .*workload"):
        drawn(setup(arrivals="trace", file=prompts))


def test_a_format_that_the_file_does_not_tell(tmp_path) -> None:
    path = tmp_path / "timed.jsonl"
    rows = ({"timestamp": n, "input_length": 9, "output_length": 9} for n in range(5))
    path.write_text("\n".join(map(json.dumps, rows)))
    asked = {"arrivals": "trace", "file": path}
    with pytest.raises(trace.TraceError, match="may be mooncake"):
        drawn(setup(**asked))
    found = drawn(setup({"a": 1.0}, **asked, trace_format="mooncake"))["a"]
    assert [row[0] for row in found] == [n * PS // 1000 for n in range(5)]


def test_without_a_limit_all_rows_come(bursts) -> None:
    found = drawn(setup(arrivals="trace", file=bursts, requests=None))
    assert sum(map(len, found.values())) == 400


def test_a_limit_of_all_rows_or_more_changes_nothing(bursts) -> None:
    for limit in (400, 1000):
        assert drawn(setup(arrivals="trace", file=bursts, requests=limit)) == drawn(
            setup(arrivals="trace", file=bursts, requests=None)
        )


def test_tenants_may_be_asked_in_any_order(bursts) -> None:
    made = setup(arrivals="trace", file=bursts)
    found = workload.requests(made, 0)
    backwards = {name: [r.arrival for r in found[name]] for name in reversed(RATES)}
    assert backwards == {name: [row[0] for row in rows] for name, rows in drawn(made).items()}


def test_a_long_trace_streams(tmp_path) -> None:
    """The first 15,000 of 200,000 rows are read. Memory stays below 1 MB, less than these rows
    alone would fill.
    """
    path, drained = tmp_path / "long.csv", 15_000
    with path.open("w") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for number in range(200_000):
            minute, rest = divmod(number, 6000)
            stamp = f"2023-11-16 {18 + minute // 60:02}:{minute % 60:02}:{rest / 100:010.7f}"
            file.write(f"{stamp},{number % 500 + 1},9\n")
    made = setup(arrivals="trace", file=path, requests=None)
    tracemalloc.start()
    found = workload.requests(made, 1)
    rows = islice(merge(*found.values(), key=lambda r: r.arrival), drained)
    total = sum(row.prompt for row in rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == sum(number % 500 + 1 for number in range(drained))
    assert peak < 1e6


# -- a peak -----------------------------------------------------------------------------


def test_no_peak_has_no_end() -> None:
    assert workload.peak_end(setup(), 0) == 0


def test_requests_of_the_peak_come_closer_and_the_others_as_before() -> None:
    plain = drawn(setup(arrivals="poisson"))
    peaked = drawn(setup(arrivals="poisson", peak={"requests": 100, "factor": 4}))
    for name, fast in {"a": 60, "b": 30, "c": 10}.items():
        before = np.diff([0, *(row[0] for row in plain[name])])
        after = np.diff([0, *(row[0] for row in peaked[name])])
        assert list(before[:fast] / 4) == pytest.approx(list(after[:fast]), abs=2)
        assert list(before[fast:]) == pytest.approx(list(after[fast:]), abs=2)


@pytest.mark.parametrize("arrivals", ["poisson", "bursty"])
def test_the_peak_ends_when_the_last_of_its_requests_has_come(arrivals) -> None:
    made = setup(arrivals=arrivals, peak={"requests": 100, "factor": 4})
    found = drawn(made, 3)
    last = max(found[name][fast - 1][0] for name, fast in {"a": 60, "b": 30, "c": 10}.items())
    assert workload.peak_end(made, 3) == pytest.approx(last, abs=2)
