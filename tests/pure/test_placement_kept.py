"""Placements that keep what is pinned, and close a replica that nobody misses."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_world import StepBooks, overfull, some_facts, some_placement
from plain_facts import PlainMachine, PlainModel, plain_facts

from mirage.control.placement.deciding import Placer
from mirage.control.placement.facts import ModelLoad, PlacementFacts
from mirage.control.placement.judging import ModelVerdict, WindowVerdict
from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.roofline_judge import RooflineJudge
from mirage.control.placement.rules import MISSED, PlacementPast, PlacementRules
from mirage.units import GIB
from tests.examples import examples

pytestmark = pytest.mark.pure
RULES = PlacementRules(evaluations=30, calm=0.5)
LLAMA = PlainModel(15 * GIB, 4 * GIB, GIB, 131_072)


def world(**arrivals_s: float) -> PlacementFacts:
    loads = {name: ModelLoad(rate, 220.0, 200.0) for name, rate in arrivals_s.items()}
    models = dict.fromkeys(arrivals_s, LLAMA)
    return plain_facts({"x": 40 * GIB, "y": 40 * GIB}, PlainMachine(1000 * GIB), models, [loads])


def test_a_replica_that_nobody_misses_closes_and_one_that_is_missed_stays() -> None:
    both = DevicePlacement.of_names({"a": ["x", "y"]})
    quiet, busy = world(a=0.5), world(a=200.0)
    decision = Placer(RULES).decide(quiet, RooflineJudge(quiet), both, PlacementPast(), 0.0)
    assert [str(step.verb) for step in decision.steps] == ["drain", "stop"]
    assert len(decision.placement.of("a")) == 1 and "without a replica of a" in decision.why
    assert decision.past.moves[0].model == "a", "it rests then"
    stays = Placer(RULES).decide(busy, RooflineJudge(busy), both, PlacementPast(), 0.0)
    assert stays.placement == both
    never = replace(RULES, calm=0.0)
    stays = Placer(never).decide(quiet, RooflineJudge(quiet), both, PlacementPast(), 0.0)
    assert stays.placement == both


def test_a_replica_is_missed_where_the_judge_says_so() -> None:
    """The judge says that one request fewer in a thousand is within limits without the second
    replica. It stays, although the load is small.
    """
    facts, both = world(a=0.5), DevicePlacement.of_names({"a": ["x", "y"]})

    def judge(placement: DevicePlacement, window: int) -> WindowVerdict:
        return {"a": ModelVerdict(100 if placement == both else 99.9, 100)}

    decision = Placer(RULES).decide(facts, judge, both, PlacementPast(), 0.0)
    assert decision.placement == both and decision.steps == ()


def test_who_is_pinned_stays_and_the_other_one_moves() -> None:
    facts = world(a=8.0, b=8.0)
    pinned = replace(facts.models[0], pins=("x",))
    facts = replace(facts, models=(pinned, facts.models[1]))
    there = DevicePlacement.of_names({"a": ["x"]})
    decision = Placer(RULES).decide(facts, RooflineJudge(facts), there, PlacementPast(), 0.0)
    assert decision.placement == there.put("b", "y")


def _pinned(random: Random, facts: PlacementFacts, present: DevicePlacement) -> PlacementFacts:
    models = tuple(
        replace(m, pins=tuple(present.of(m.name))) if random.random() < 0.5 else m
        for m in facts.models
    )
    return replace(facts, models=models)


@examples(400)
@given(st.integers(0, 2**32))
def test_in_any_world_what_is_pinned_stays_as_it_is(seed: int) -> None:
    random = Random(seed)
    facts = some_facts(random)
    present = some_placement(random, facts)
    facts = _pinned(random, facts, present)
    decision = Placer(RULES).decide(facts, RooflineJudge(facts), present, PlacementPast(), 0.0)
    for model in facts.models:
        if model.pins:
            assert decision.placement.of(model.name) == present.of(model.name)
    StepBooks(facts, present).do(decision.steps)
    assert not overfull(facts, decision.placement)


@examples(200)
@given(st.integers(0, 2**32))
def test_a_constant_load_comes_to_rest_where_replicas_close(seed: int) -> None:
    random = Random(seed)
    facts = some_facts(random)
    present, past, now = some_placement(random, facts), PlacementPast(), 0.0
    seen = {present}
    while past.settled is None:
        decision = Placer(RULES).decide(facts, RooflineJudge(facts), present, past, now)
        assert not decision.steps or decision.placement not in seen, "it was there before"
        if decision.steps and decision.before and decision.after:
            assert decision.after.part >= decision.before.part - MISSED, "it is missed"
        present, past, now = decision.placement, decision.past, now + 1300.0
        seen.add(present)
        assert len(seen) < 200
