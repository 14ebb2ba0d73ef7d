"""Steps from one placement to another: within memory at each, and additive first."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_world import StepBooks, overfull, some_facts, some_placement

from mirage.control.placement.facts import (
    DeviceSpeed,
    PlaceDevice,
    PlaceMachine,
    PlacementFacts,
    PlaceModel,
)
from mirage.control.placement.placed import NOWHERE, DevicePlacement, Stand
from mirage.control.placement.steps import MovePath, MoveVerb, changes, path_towards
from tests.examples import examples

pytestmark = pytest.mark.pure
COMING = (MoveVerb.START, MoveVerb.WAKE)
ENDING = (MoveVerb.DRAIN, MoveVerb.STOP)


def small(devices: str, nbytes: int, host: int, models: str, **more: bool) -> PlacementFacts:
    """Facts of equal devices of `nbytes`, and of models with 10 bytes of parameters, a least grant
    of 6 bytes, and 1 byte asleep.
    """
    speed = DeviceSpeed(1.0, 1.0)
    return PlacementFacts(
        tuple(PlaceDevice(name, "m", nbytes, speed, 1.0) for name in devices),
        (PlaceMachine("m", host, 1.0),),
        tuple(PlaceModel(name, 10, 6, 1, 1.0, 1.0, 1.0, 1.0, **more) for name in models),
        (),
    )


def said(path: MovePath) -> list[str]:
    return [f"{step.verb} {step.model} {step.device}" for step in path.steps]


def names(**devices: str) -> DevicePlacement:
    return DevicePlacement.of_names(devices)


def test_a_move_starts_there_and_ends_here() -> None:
    path = path_towards(small("xy", 16, 99, "a"), names(a="x"), names(a="y"))
    assert said(path) == ["start a y", "route a y", "drain a x", "stop a x"]
    assert path.reached == names(a="y") and path.moved == ("a",)


def test_weights_that_a_machine_lacks_come_before_the_engine() -> None:
    facts = replace(small("xy", 16, 99, "a"), lacking=frozenset({("a", "m")}))
    path = path_towards(facts, names(a="x"), names(a="y"))
    assert said(path) == ["bring a y", "start a y", "route a y", "drain a x", "stop a x"]


def test_both_copies_have_to_fit_host_memory() -> None:
    path = path_towards(small("xy", 16, 19, "a"), names(a="x"), names(a="y"))
    assert path.steps == () and path.reached == names(a="x")


def test_what_sleeps_there_wakes() -> None:
    asleep = names(a="x").put("a", "y", Stand.ASLEEP)
    after = NOWHERE.put("a", "x", Stand.ASLEEP).put("a", "y")
    path = path_towards(small("xy", 10, 20, "a"), asleep, after)
    assert said(path) == ["wake a y", "route a y", "drain a x", "sleep a x"]


def test_models_that_are_awake_nowhere_come_first_and_wakes_before_starts() -> None:
    facts = small("xy", 99, 999, "abcd")
    present = names(a="x", d="x").put("c", "y", Stand.ASLEEP)
    path = path_towards(facts, present, names(a="y", b="y", c="y", d="y"))
    comes = [line for line in said(path) if line.split()[0] in COMING]
    assert comes == ["wake c y", "start b y", "start a y", "start d y"]


def test_what_starts_hollow_needs_no_room_for_its_parameters() -> None:
    hollow = small("xy", 7, 99, "ab", hollow=True)
    path = path_towards(hollow, names(a="x"), names(a="y"))
    assert said(path) == ["start a y", "wake a y", "route a y", "drain a x", "stop a x"]
    assert said(path_towards(hollow, NOWHERE, NOWHERE.put("a", "x", Stand.ASLEEP))) == [
        "start a x",
        "route a x",
    ]
    whole = small("xy", 7, 99, "ab")
    assert path_towards(whole, names(a="x"), names(a="y")).steps == ()


def test_one_makes_room_for_the_next() -> None:
    """Models a on y and b on x: a shall be on x, b on z. b moves first, so that a has room; model
    c, which no place names, stays on y.
    """
    facts = small("xyz", 12, 99, "abc")
    path = path_towards(facts, names(a="y", b="x"), names(a="x", b="z"))
    assert said(path) == [
        *("start b z", "route b z", "drain b x", "stop b x"),
        *("start a x", "route a x", "drain a y", "stop a y"),
    ]


def test_a_swap_without_room_for_both_is_left_as_it_is() -> None:
    facts = small("xy", 12, 99, "ab")
    before = names(a="x", b="y")
    path = path_towards(facts, before, names(a="y", b="x"))
    assert path.steps == () and path.reached == before and path.moved == ()


def test_who_rests_stays_and_the_budget_counts_moves_of_models_that_are_somewhere() -> None:
    facts = small("xy", 99, 999, "abc")
    before, after = names(a="x", b="x"), names(a="y", b="y", c="y")
    path = path_towards(facts, before, after, resting={"a"}, budget=1)
    assert path.reached == names(a="x", b="y", c="y")
    assert path_towards(facts, before, after, budget=1).reached == names(a="y", b="x", c="y")
    assert path_towards(facts, before, after, budget=0).reached == names(a="x", b="x", c="y")


def test_a_master_is_shared_where_the_machine_shares_it() -> None:
    facts = small("xy", 99, 10, "a")
    shared = PlacementFacts(
        facts.devices, (PlaceMachine("m", 10, 1.0, shared_masters=True),), facts.models, ()
    )
    assert path_towards(facts, names(a="x"), names(a="xy")).steps == ()
    assert said(path_towards(shared, names(a="x"), names(a="xy"))) == ["start a y", "route a y"]


@examples(8000)
@given(st.integers(0, 2**32))
def test_any_path_stays_within_memory_and_never_leaves_a_model_without_a_route(seed: int) -> None:
    random = Random(seed)
    facts = some_facts(random)
    present, wanted = some_placement(random, facts), some_placement(random, facts)
    budget = random.choice((0, 1, 3, 99))
    path = path_towards(facts, present, wanted, budget=budget)
    books = StepBooks(facts, present)
    ended: set[str] = set()
    for step in path.steps:
        assert not (step.verb in COMING and step.model in ended), "it ended before it came"
        if step.verb in ENDING and wanted.of(step.model):
            ended.add(step.model)
        books.do([step])
        for model in present.by_model:
            routed = any(name == model for name, _ in books.routed)
            falls_asleep = not any(s is Stand.AWAKE for s in wanted.of(model).values())
            assert routed or falls_asleep or not wanted.of(model), f"{model} has no route"
    reached = {(p.model, p.device) for p in path.reached.places}
    assert set(books.held) == reached and not overfull(facts, path.reached)
    moved = sum(bool(present.of(name)) for name in path.moved)
    assert moved <= budget
    for model in facts.model:
        comes, goes = changes(path.reached, wanted, model)
        if not comes and not goes:
            continue
        assert path.reached.of(model) == present.of(model) or comes, "left half way for nothing"
    assert path == path_towards(facts, present, wanted, budget=budget)
