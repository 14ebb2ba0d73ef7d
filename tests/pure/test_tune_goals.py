"""Goals of tuning: limits on latencies, objectives, and windows of traffic."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.config import ConfigError
from mirage.tools.report.slo import Slo
from mirage.tools.report.slo import parse as parse_slo
from mirage.tools.tune.goals import (
    OBJECTIVES,
    CompletedRequest,
    Goal,
    WindowResult,
    figures,
    parse_objective,
    share_met,
)
from mirage.tools.tune.windows import LEAST_WINDOW, cut
from mirage.workload.trace import TraceRequest

pytestmark = pytest.mark.pure

FAST = CompletedRequest(ttft=0.1, tpot=0.01, longest=0.02, e2el=1.1, tokens=101)
SLOW = CompletedRequest(ttft=2.0, tpot=0.05, longest=0.9, e2el=7.0, tokens=101)
ONE_TOKEN = CompletedRequest(ttft=0.3, tpot=0.0, longest=0.0, e2el=0.3, tokens=1)


# -- limits -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("ttft_ms=500", Slo(ttft_ms=500)),
        (" tpot_ms=50 , itl_ms=0.5", Slo(tpot_ms=50, itl_ms=0.5)),
        ("ttft_ms=1,tpot_ms=2,itl_ms=3", Slo(1, 2, 3)),
    ],
)
def test_limits_are_read_and_written_again(text: str, slo: Slo) -> None:
    assert parse_slo(text) == slo
    assert parse_slo(str(slo)) == slo


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no limit, write NAME=MILLISECONDS, names are ttft_ms, tpot_ms, itl_ms"),
        ("ttft=500", "'ttft=500' is no limit"),
        ("ttft_ms=fast", "ttft_ms 'fast' is no time"),
        ("ttft_ms=-5", "ttft_ms '-5' is no time"),
        ("ttft_ms=0", "ttft_ms '0' is no time: use milliseconds above 0"),
        ("ttft_ms=99999999", "at most 1e+07"),
        ("ttft_ms=5,ttft_ms=6", "ttft_ms is given twice"),
        ("ttft_ms=5,", "'' is no limit"),
    ],
)
def test_a_limit_that_is_none_is_one_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_slo(text)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_objective_that_nobody_knows_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"--objective 'speed': choose from goodput, throughput"):
        parse_objective("speed")


# -- objectives -------------------------------------------------------------------------


def test_goodput_counts_requests_that_met_all_limits_in_time() -> None:
    outcomes = [WindowResult((FAST, SLOW), 4.0), WindowResult((FAST,), 1.0)]
    assert figures(outcomes, Slo(ttft_ms=500))["goodput"] == pytest.approx(2 / 5)
    assert figures(outcomes, Slo(tpot_ms=50))["goodput"] == pytest.approx(3 / 5)
    assert figures(outcomes, Slo(itl_ms=500))["goodput"] == pytest.approx(2 / 5)
    assert figures(outcomes, Slo())["requests"] == pytest.approx(3 / 5)
    assert figures(outcomes, Slo())["throughput"] == pytest.approx(303 / 5)
    assert share_met(outcomes, Slo(ttft_ms=500)) == pytest.approx(2 / 3)


def test_latencies_between_tokens_leave_out_requests_with_one() -> None:
    found = figures([WindowResult((FAST, ONE_TOKEN), 1.0)], Slo())
    assert found["tpot_mean"] == found["tpot_p99"] == pytest.approx(10)
    assert found["itl_p50"] == pytest.approx(20)
    assert found["ttft_mean"] == pytest.approx(200)
    assert found["e2el_p50"] == pytest.approx(700)


def test_without_requests_every_objective_is_its_worst() -> None:
    found = figures([], Slo())
    for objective in OBJECTIVES:
        assert found[objective] == Goal(objective, Slo()).worst


@given(one=st.floats(0.001, 1e6), other=st.floats(0.001, 1e6))
def test_the_better_of_two_gains_over_the_other(one: float, other: float) -> None:
    for objective in ("goodput", "ttft_p99"):
        goal = Goal(objective, Slo())
        assert goal.better(one, other) == (goal.gain(one, other) > 0)
    assert Goal("ttft_p99", Slo()).better(one, inf)


# -- windows ----------------------------------------------------------------------------


@given(total=st.integers(8 * LEAST_WINDOW, 5000), largest=st.integers(LEAST_WINDOW, 400))
def test_windows_never_overlap_and_every_second_one_is_held_back(total: int, largest: int) -> None:
    requests = [TraceRequest(float(i), i + 1, 1) for i in range(total)]
    found = cut(requests, largest)
    windows = sorted((*found.searched, *found.held_back), key=lambda window: window.number)
    assert [w.number for w in found.searched] == [0, 2, 4, 6]
    seen = [request.context_tokens for window in windows for request in window.requests]
    assert len(seen) == len(set(seen)) and seen == sorted(seen)
    for window in windows:
        assert LEAST_WINDOW <= len(window.requests) <= largest
        assert window.requests[0].arrival_s == 0
        assert window.end_s - window.begin_s == window.requests[-1].arrival_s


def test_a_trace_that_is_too_short_is_one_line() -> None:
    with pytest.raises(ConfigError, match="the trace has 79 requests: 80 are needed"):
        cut([TraceRequest(float(i), 1, 1) for i in range(79)])
