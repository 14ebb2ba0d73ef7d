"""Percentiles of weighted values, runs of equal gaps, and values put into bins."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage.control.answers import Answered
from mirage.simulate import tally
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.tally import Distribution, Gaps, Tally

pytestmark = pytest.mark.pure

PERCENTS = [0.0, 1.0, 37.5, 50.0, 90.0, 99.0, 99.9, 100.0]
values = st.integers(0, 10**13)
weighted = st.lists(st.tuples(values, st.integers(1, 9)), min_size=1, max_size=30)
runs = st.lists(
    st.tuples(st.integers(1, 10**10), st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9)),
    min_size=1,
    max_size=20,
)


def distribution(weighted) -> Distribution:
    made = Distribution()
    made.add([v for v, _ in weighted], [w for _, w in weighted])
    return made


def expanded(weighted) -> list[int]:
    return [v for v, w in weighted for _ in range(w)]


def gaps_of(runs) -> list[int]:
    return [
        first + growth * step
        for first, growth, n, of in runs
        for step in range(n)
        for _ in [0] * of
    ]


def in_order(distribution: Distribution) -> list[float]:
    found, weights = distribution.sorted()
    return list(np.repeat(found, weights))


# -- distributions ----------------------------------------------------------------------


@given(weighted=weighted)
@settings(deadline=None)
def test_percentiles_are_those_of_the_values_written_out(weighted) -> None:
    found = distribution(weighted).percentiles(PERCENTS)
    assert found == pytest.approx(list(np.percentile(expanded(weighted), PERCENTS)), rel=1e-12)


@given(weighted=weighted)
def test_count_and_mean_are_those_of_the_values_written_out(weighted) -> None:
    made, whole = distribution(weighted), expanded(weighted)
    assert made.count == len(whole)
    assert made.mean() == pytest.approx(sum(whole) / len(whole), rel=1e-12)


@given(weighted=weighted, heavy=st.integers(1, 10**9))
def test_weights_are_never_written_out(weighted, heavy) -> None:
    """All weights are multiplied by a large factor. Percentiles stay, and no value is repeated in
    memory.
    """
    made = distribution([(v, w * heavy) for v, w in weighted])
    assert made.count == heavy * len(expanded(weighted))
    assert made.percentiles([0, 100]) == [min(weighted)[0], max(weighted)[0]]


@given(parts=st.lists(weighted, min_size=1, max_size=4))
@settings(deadline=None)
def test_merging_is_adding_all(parts) -> None:
    merged = Distribution()
    for part in parts:
        merged.merge(distribution(part))
    whole = distribution([pair for part in parts for pair in part])
    assert merged.percentiles(PERCENTS) == whole.percentiles(PERCENTS)
    assert (merged.count, merged.mean()) == (whole.count, pytest.approx(whole.mean(), rel=1e-12))


def test_merging_takes_nothing_from_the_other() -> None:
    one, other = distribution([(1, 1)]), distribution([(2, 2)])
    one.merge(other)
    assert (one.count, other.count) == (3, 2)
    assert in_order(other) == [2, 2]


def test_nothing_counts_nothing() -> None:
    assert Distribution().count == 0


# -- too many values --------------------------------------------------------------------


@given(
    numbers=st.lists(st.integers(1, 10**13), min_size=30, max_size=200),
    weight=st.integers(1, 5),
    at_once=st.integers(1, 40),
)
@settings(deadline=None)
def test_bins_keep_the_count_and_every_value_to_a_thousandth(numbers, weight, at_once) -> None:
    """Too many values are put into bins again and again. Their number is exact, and each value in
    order, so each percentile, is right within a thousandth.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally, "LIMIT", 20)
        made = Distribution()
        for start in range(0, len(numbers), at_once):
            part = numbers[start : start + at_once]
            made.add(part, [weight] * len(part))
    assert made.count == weight * len(numbers)
    exact = np.repeat(sorted(numbers), weight)
    assert in_order(made) == pytest.approx(list(exact), rel=1e-3)
    assert made.percentiles(PERCENTS) == pytest.approx(
        list(np.percentile(exact, PERCENTS)), rel=1e-3
    )
    assert made.mean() == pytest.approx(float(np.mean(exact)), rel=1e-3)


def test_bins_hold_little(monkeypatch) -> None:
    monkeypatch.setattr(tally, "LIMIT", 1000)
    made = Distribution()
    for start in range(0, 200_000, 500):
        made.add(np.arange(start, start + 500) % 997 + 10**6)
    assert made.count == 200_000
    assert len(made.sorted()[0]) <= 2 * 1000


def test_a_latency_of_nothing_survives_the_bins(monkeypatch) -> None:
    monkeypatch.setattr(tally, "LIMIT", 3)
    made = distribution([(0, 2), (5, 1), (0, 1), (7, 1)])
    assert made.count == 5
    assert made.percentiles([50]) == pytest.approx([0], abs=1e-6)


# -- gaps -------------------------------------------------------------------------------


@given(runs=runs)
def test_runs_expand_exactly(runs) -> None:
    gaps = Gaps()
    for run in runs:
        gaps.add(*run)
    gaps.flush()
    assert in_order(gaps.distribution) == sorted(gaps_of(runs))


@given(runs=runs)
@settings(deadline=None)
def test_runs_expand_alike_in_one_flush_or_many(runs) -> None:
    gaps = Gaps()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally, "LIMIT", 12)
        for run in runs:
            gaps.add(*run)
        gaps.flush()
        gaps.flush()
    assert gaps.distribution.count == len(gaps_of(runs))
    assert in_order(gaps.distribution) == pytest.approx(sorted(gaps_of(runs)), rel=1e-3)


def test_a_run_may_be_long_and_heavy() -> None:
    gaps = Gaps()
    gaps.add(10**10, 10**5, 5000, 1024)
    gaps.flush()
    assert gaps.distribution.count == 5000 * 1024
    ends = gaps.distribution.percentiles([0, 100])
    assert ends == [10**10, 10**10 + 10**5 * 4999]


def test_long_runs_expand_in_little_memory(monkeypatch) -> None:
    """A thousand runs of a thousand steps are counted while at most a thousand values may be kept:
    memory stays under 2 MB.
    """
    monkeypatch.setattr(tally, "LIMIT", 1000)
    gaps = Gaps()
    tracemalloc.start()
    for number in range(1000):
        gaps.add(10**9 + number, 7, 1000, 1)
    gaps.flush()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert gaps.distribution.count == 10**6
    assert peak < 2e6


# -- requests ---------------------------------------------------------------------------

lives = st.lists(
    st.tuples(*[st.integers(1, 10**12)] * 3, st.integers(1, 50)), min_size=1, max_size=20
)


@given(lives=lives, limit=st.sampled_from([5, 10**6]))
@settings(deadline=None)
def test_latencies_are_those_of_vllm_bench_serve(lives, limit) -> None:
    made = Tally()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally, "LIMIT", limit)
        for number, (arrival, wait, rest, output) in enumerate(lives):
            request = SimulatedRequest(number, arrival, 11, output, first=arrival + wait)
            made.finished(request, arrival + wait + rest)
        made.flush()
    close = {"rel": 1e-3 if limit < len(lives) else 1e-12}
    ttft, e2el = sorted(w for _, w, _, _ in lives), sorted(w + r for _, w, r, _ in lives)
    tpot = sorted(rest / (output - 1) for _, _, rest, output in lives if output > 1)
    assert in_order(made.ttft) == pytest.approx(ttft, **close)
    assert in_order(made.e2el) == pytest.approx(e2el, **close)
    assert in_order(made.tpot) == pytest.approx(tpot, **close)
    assert made.counters.completed == len(lives)
    assert made.counters.prompt_tokens == 11 * len(lives)
    assert made.counters.output_tokens == sum(output for *_, output in lives)


@given(weighted=weighted, percents=st.lists(st.floats(0, 100), min_size=2, max_size=9))
@settings(deadline=None)
def test_higher_percentiles_are_no_smaller(weighted, percents) -> None:
    found = distribution(weighted).percentiles(sorted(percents))
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(found))


MEAN = """
import numpy as np
from mirage.simulate.tally import Distribution
drawn = np.random.default_rng(0)
of = Distribution()
of.add(drawn.random(150_000) * 1e10, drawn.integers(1, 60, 150_000))
print(of.mean().hex())
"""


def test_a_mean_is_the_same_to_the_last_digit_on_any_number_of_processors() -> None:
    """The mean is equal to the last digit with one thread of numpy and with two. numpy would sum a
    product of long vectors in as many parts as it has threads.
    """
    means = {
        subprocess.run(
            [sys.executable, "-c", MEAN],
            env=os.environ | {"OPENBLAS_NUM_THREADS": str(threads)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in (1, 2)
    }
    assert len(means) == 1


def test_what_answers_were_like_is_known_after_measuring_began_anew() -> None:
    made = Tally()
    answered = made.answered
    for tokens in 700, 300:
        made.counters.tokens += tokens + 100
        made.counters.prefill_tokens += 100
        made.counters.completed += 2
        before = answered()
        made.restart()
        assert answered() == before
        assert made.counters.tokens == 0
    assert answered() == Answered(1000, 4)
