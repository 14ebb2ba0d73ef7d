"""Limits on a request's latencies, goodput within them, and requests that the client gave up."""

import pytest

from mirage.config import ConfigError
from mirage.tools.replay.client import Outcome
from mirage.tools.replay.metrics import summarize
from mirage.tools.replay.trail import NOTHING
from mirage.tools.report.slo import Slo, parse
from mirage.workload.dealing import TenantRequest

pytestmark = pytest.mark.pure


def outcome(ttft: float, *itl: float, error: str | None = None, abandoned: bool = False) -> Outcome:
    call, ends = TenantRequest(0, 0.0, "a", 10, 5, False), ttft + sum(itl)
    tokens = 1 + len(itl)
    return Outcome(call, 0, 0, ends, ttft, ends, itl, 10, tokens, NOTHING, error, abandoned)


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("ttft_ms=500", Slo(ttft_ms=500)),
        (" ttft_ms = 1e3 ,tpot_ms=50.5", Slo(ttft_ms=1000, tpot_ms=50.5)),
        ("itl_ms=1,e2el_ms=2", Slo(itl_ms=1, e2el_ms=2)),
    ],
)
def test_limits_are_read(text: str, slo: Slo) -> None:
    assert parse(text) == slo


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "write NAME=MILLISECONDS"),
        ("ttft=5", "names are ttft_ms, tpot_ms, itl_ms, e2el_ms"),
        ("ttft_ms=soon", "ttft_ms 'soon' is no time"),
        ("ttft_ms=0", "ttft_ms '0' is no time"),
        ("ttft_ms=nan", "is no time"),
        ("ttft_ms=inf", "is no time"),
        ("ttft_ms=1,ttft_ms=2", "ttft_ms is given twice"),
    ],
)
def test_what_is_no_limit_is_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse(text)
    assert says in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("limits", "met"),
    [
        ("ttft_ms=100", True),
        ("ttft_ms=99", False),
        ("tpot_ms=30", True),
        ("tpot_ms=29", False),
        ("itl_ms=50", True),
        ("itl_ms=49", False),
        ("e2el_ms=160", True),
        ("e2el_ms=159", False),
        ("ttft_ms=100,itl_ms=49", False),
    ],
)
def test_each_limit_bounds_its_own_figure(limits: str, met: bool) -> None:
    one = outcome(0.125 * 0.8, 0.01, 0.05)
    assert parse(limits).met(one) is met


def test_goodput_counts_requests_that_met_every_limit() -> None:
    each = [
        outcome(0.1, 0.01),
        outcome(0.9, 0.01),
        outcome(0.1, 0.01, error="broken"),
        outcome(0.1, error="given up after 1 s", abandoned=True),
    ]
    found = summarize(each, 2.0, Slo(ttft_ms=500))
    assert (found["requests"], found["completed"]) == (4, 2)
    assert (found["failed"], found["abandoned"]) == (1, 1)
    assert (found["slo_met"], found["goodput"]) == (1, 0.5)
    assert summarize(each, 2.0)["goodput"] is None
