"""Placements of random worlds over hours: loads that change, devices that go and come back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.placement.deciding import PlacementDecision, Placer
from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.roofline_judge import RooflineJudge
from mirage.control.placement.rules import PlacementPast, PlacementRules
from mirage.control.placement.steps import MoveVerb
from tests.examples import examples
from tests.pure.placement_world import StepBooks, noisy, some_facts, some_placement

pytestmark = pytest.mark.pure
RULES = PlacementRules(evaluations=8, moves_an_hour=6)
OPENS, CLOSES = (MoveVerb.START, MoveVerb.WAKE), (MoveVerb.SLEEP, MoveVerb.STOP)


def serving(books: StepBooks) -> Counter[str]:
    """Number of processes of each model to which requests are routed."""
    return Counter(model for model, _ in books.routed)


def carried_out(
    facts: PlacementFacts, present: DevicePlacement, decision: PlacementDecision
) -> None:
    """Carry the steps of a decision out one by one. Memory of devices and hosts suffices at each
    step, and each model has at least as many routes as before or after, whichever is fewer.
    """
    books = StepBooks(facts, present)
    before = serving(books)
    counts = []
    for step in decision.steps:
        books.do([step])
        counts.append(serving(books))
    after = serving(books)
    for model in before:
        least = min(before[model], after[model], len(decision.placement.of(model)))
        assert all(each[model] >= least for each in counts), model


@pytest.mark.slow
@examples(4000)
@given(st.integers(0, 2**32))
def test_memory_holds_at_every_step_of_hours_and_each_change_adds_first(seed: int) -> None:
    random = Random(seed)
    whole = some_facts(random)
    present, past = some_placement(random, whole), PlacementPast()
    for turn in range(6):
        loads = some_facts(random).windows if random.random() < 0.4 else whole.windows
        whole = noisy(random, replace(whole, windows=loads), 0.1)
        there = tuple(d for d in whole.devices if random.random() < 0.8) or whole.devices[:1]
        facts = replace(whole, devices=there)
        present = present.within(facts)
        decision = Placer(RULES).decide(facts, RooflineJudge(facts), present, past, turn * 400.0)
        carried_out(facts, present, decision)
        present, past = decision.placement, decision.past


@pytest.mark.slow
@examples(4000)
@given(st.integers(0, 2**32))
def test_nothing_is_taken_back_before_it_has_rested_while_loads_stay_in_their_band(
    seed: int,
) -> None:
    random = Random(seed)
    facts = some_facts(random)
    present, past = some_placement(random, facts), PlacementPast()
    opened: dict[tuple[str, str], float] = {}
    known = set(present.by_model)
    for turn in range(12):
        now = turn * 150.0
        same = noisy(random, facts, 0.04)
        decision = Placer(RULES).decide(same, RooflineJudge(same), present, past, now)
        for step in decision.steps:
            key = step.model, step.device
            if step.verb in CLOSES and key in opened and step.model in known:
                assert now - opened[key] >= RULES.rest_s, f"{step} at {now}"
        for step in decision.steps:
            if step.verb in OPENS:
                opened[step.model, step.device] = now
        known |= set(decision.placement.by_model)
        present, past = decision.placement, decision.past
