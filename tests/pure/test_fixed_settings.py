"""Fixed settings of a world: what is tried, and how it is judged. No world is simulated."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import oracle
from benchmarks.ablations import setup
from benchmarks.fixed import MOST_TPOT, applied, first_settings, knobs, mean, worth
from benchmarks.worlds import FIGURES, drawn

pytestmark = pytest.mark.pure

FITTING = next(drawn(5))
WORLD = FITTING | {"sharing": {"mode": "temporal", "turn_s": 2.0}}
SPATIAL = FITTING | {"sharing": {"mode": "spatial"}}
EVEN = dict.fromkeys(FIGURES, 1.0)


@pytest.mark.parametrize("world", [WORLD, SPATIAL])
def test_every_value_of_every_knob_is_one_that_an_experiment_may_have(world: Any) -> None:
    for knob, values in knobs(world).items():
        for value in values:
            setup(applied(world, {knob: value}))


def test_knobs_reach_the_keys_they_name() -> None:
    settings = {"max_percent t0": 10, "lend_kv": 0.4, "tbt_ms": 40.0, "drain": True}
    changed = applied(WORLD, settings)
    assert changed["tenants"][0]["max_percent"] == 10
    assert changed["ablations"] == {"lend_kv": 0.4}
    assert changed["remap"] == {"tbt_ms": 40.0}
    assert changed["sharing"]["drain"] is True
    assert "max_percent" not in WORLD["tenants"][0], "the world itself stays as it is"


def test_turns_that_the_world_drains_stay_so() -> None:
    assert "drain" in knobs(WORLD)
    told = WORLD | {"sharing": {"mode": "temporal", "turn_s": 2.0, "drain": True}}
    assert "drain" not in knobs(told) and "drain" not in knobs(SPATIAL)


@pytest.mark.parametrize("world", [WORLD, SPATIAL])
def test_the_rule_and_pooling_are_always_tried(world: Any) -> None:
    rule, pooled, *others = first_settings(world)
    assert rule == {}
    assert pooled == {f"max_percent {t['name']}": 0 for t in world["tenants"]}
    for settings in [pooled, *others]:
        for knob, value in settings.items():
            assert value in knobs(world)[knob]


def test_more_tokens_are_better_unless_they_cost_too_much_latency() -> None:
    assert worth(EVEN) == 0
    assert worth(EVEN | {"tokens/s": 1.1}) > worth(EVEN | {"TTFT P99": 0.5}) > 0
    assert worth(EVEN | {"TPOT P99": MOST_TPOT}) == 0
    assert worth(EVEN | {"tokens/s": 1.1, "TPOT P99": 1.2}) < 0


def test_the_mean_of_a_doubling_and_a_halving_is_nothing() -> None:
    doubled, halved = (dict.fromkeys(FIGURES, value) for value in (2.0, 0.5))
    assert mean([doubled, halved]) == pytest.approx(EVEN)


def row(number: int, rule: float, best: float) -> oracle.Row:
    figures = {
        who: EVEN | {"tokens/s": gain}
        for who, gain in zip(oracle.WHO, (rule, best, 1.5, 2.0), strict=True)
    }
    return {"number": number, "saturated": True, "world": WORLD, "settings": {}, **figures}


def test_the_share_is_of_the_gain() -> None:
    assert oracle.share([row(1, 1.1, 1.21)]) == pytest.approx(0.5)
    assert oracle.share([row(1, 1.0, 1.1), row(2, 1.1, 1.1)]) == pytest.approx(0.5)
    assert oracle.share([row(1, 1.0, 1.0)]) is None


def test_worlds_come_by_what_the_rule_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    oracle.report([row(1, 1.1, 1.1), row(2, 1.0, 1.3)], shown=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines[-2:]] == ["| 2", "| 1"]
    assert any("in turns, draining left open, 2" in line for line in lines)


def test_a_line_that_was_cut_short_is_looked_at_again(tmp_path: Any) -> None:
    file = tmp_path / "results.jsonl"
    assert oracle.stored(file) == []
    file.write_text('{"number": 1, "saturated": false}\n{"number": 2, "sat')
    assert oracle.stored(file) == [{"number": 1, "saturated": False}]
