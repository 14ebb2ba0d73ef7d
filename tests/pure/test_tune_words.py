"""Words of a tuner's result: gains, lenders, and what else would help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tune_case import write, write_trace

from mirage.tools.report.slo import Slo
from mirage.tools.tune.answer import Recommendation
from mirage.tools.tune.goals import Goal
from mirage.tools.tune.pictures import pareto
from mirage.tools.tune.question import TuneOptions, ask
from mirage.tools.tune.table import about
from mirage.tools.tune.words import Findings, sentences

pytestmark = pytest.mark.pure

HELD = {"static": 1.0, "pooled": 2.0, "default": 3.0, "tuned": 3.5, "tuned at 0 %": 2.5} | {
    "fixed 0 %": 2.0,
    "fixed 10 %": 2.2,
    "fixed 30 %": 2.8,
}
FOUND = Findings(
    goal=Goal("goodput", Slo(ttft_ms=500)),
    searched=HELD,
    held_back=HELD,
    changed=["max_percent of chat to 40", "sharing.turn_s to 2"],
    lent_idle=95.0,
    lent_active=5.0,
    hides=[],
    tenants=2,
    explained=["one", "two", "The break-even link is so much."],
    bottleneck="more device memory",
)


def told(**changes: object) -> tuple[str, str, str]:
    first, second, third = sentences(replace(FOUND, **changes))
    return first, second, third


def test_behind_pcie_only_idle_models_should_give() -> None:
    first, second, third = told()
    assert first == (
        "Set max_percent of chat to 40 and sharing.turn_s to 2: on unseen windows 3.5 requests/s "
        "of goodput (ttft_ms=500), 3 of the configuration as it is (16.7 % better)."
    )
    assert "Remapping pays, it is 40.0 % better than 0 % of the layers" in second
    assert "only idle models should give: 95 % of what is lent is theirs" in second
    assert third == "The break-even link is so much."


def test_models_that_lend_sooner_than_before_are_told_when() -> None:
    _, second, _ = told(rest_s=(30.0, 2.0))
    assert "only idle models should give, after 2 s without work instead of 30 s: 95 %" in second
    assert "without work" not in told(rest_s=(2.0, 2.0))[1]


def test_where_active_ones_hide_layers_they_are_named() -> None:
    _, second, _ = told(hides=["chat"], lent_idle=30.0, lent_active=70.0)
    assert "only idle" not in second
    assert "30 % of what is lent is idle models', the rest active ones'" in second
    assert "layers of chat hide behind the decode of one request" in second


def test_a_percentage_that_was_right_is_said_to_be() -> None:
    kept = "; no max_percent was better than the one it has."
    assert kept not in told()[1]
    for more in ({}, {"hides": ["chat"]}, {"tenants": 1}):
        assert told(changed=["remap.rest_s to 2"], **more)[1].endswith(kept)


def test_a_single_model_lends_to_nobody() -> None:
    _, second, _ = told(tenants=1, hides=["chat"])
    assert "idle" not in second and "of what is lent" not in second


def test_where_remapping_does_not_pay_it_says_what_would() -> None:
    flat = dict.fromkeys(HELD, 2.0) | {"tuned": 2.4, "tuned at 0 %": 2.4}
    first, second, third = told(held_back=flat)
    assert "20.0 % better" in first
    assert second.startswith("Remapping does not pay here") and "pooled does the same" in second
    assert third.startswith("What would help: more device memory. ")


def test_worse_on_unseen_windows_is_said() -> None:
    first, _, _ = told(held_back=HELD | {"tuned": 2.7})
    assert "is not on unseen ones" in first and "10.0 % worse" in first
    assert "keep the configuration as it is" in first


def test_a_tie_on_unseen_windows_is_no_gain() -> None:
    first, _, _ = told(held_back=HELD | {"tuned": 3.0})
    assert "is not on unseen ones" in first and "keep the configuration as it is" in first
    assert "3 of the configuration as it is, no better)" in first and not first.startswith("Set")


@pytest.mark.parametrize(("requests", "told"), [(80, 40), (160, 80), (199, 96), (200, None)])
def test_what_is_judged_on_few_requests_is_told(
    tmp_path: Path, requests: int, told: int | None
) -> None:
    question = ask(write(tmp_path), TuneOptions(trace=str(write_trace(tmp_path, requests))))
    plain = {"slower": 1.0, "slo_is_derived": False, "pressing": {}, "load": None}
    answer = cast(Recommendation, SimpleNamespace(goal=FOUND.goal, **plain))
    said = [line for line in about(question, answer) if line.startswith("So few requests")]
    assert [f"({told})" in line for line in said] == ([] if told is None else [True])


def test_nothing_found_is_said() -> None:
    first, _, _ = told(changed=[])
    assert first.startswith("Leave the configuration as it is")


def test_of_a_latency_less_is_better() -> None:
    first, second, _ = told(goal=Goal("ttft_p99", Slo()), held_back=HELD | {"tuned": 1.5})
    assert "1.5 ms of ttft_p99" in first and "50.0 % better" in first
    assert "it is 40.0 % better than 0 %" in second


def test_the_front_has_what_nothing_beats_in_both() -> None:
    points = [(1.0, 5.0), (2.0, 4.0), (2.0, 9.0), (3.0, 9.0), (4.0, 10.0), (1.0, 5.0)]
    assert pareto(points) == [(1.0, 5.0), (2.0, 9.0), (4.0, 10.0)]
