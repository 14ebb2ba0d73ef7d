"""Steps that follow others that were not carried out: memory suffices, and the rest goes on."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_world import StepBooks, some_facts, some_placement

from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.steps import MoveStep, MoveVerb, path_towards
from mirage.control.placement.undone import hindrance, needed
from tests.examples import examples

pytestmark = pytest.mark.pure
MACHINES = {"x": "m", "y": "m", "z": "n"}


def step(verb: MoveVerb, place: str) -> MoveStep:
    return MoveStep(verb, place[0], place[1])


def start(place: str) -> list[MoveStep]:
    return [step(MoveVerb.START, place), step(MoveVerb.ROUTE, place)]


def end(place: str, verb: MoveVerb = MoveVerb.STOP) -> list[MoveStep]:
    return [step(MoveVerb.DRAIN, place), step(verb, place)]


def goes_on(steps: list[MoveStep], *failing: int) -> list[int]:
    """Numbers of the steps that are tried, if those in `failing` fail."""
    undone, tried = list[int](), []
    for number in range(len(steps)):
        hindered = hindrance(steps, number, undone, MACHINES)
        if not hindered:
            tried.append(number)
        if hindered or number in failing:
            undone.append(number)
    return tried


def test_a_failed_model_does_not_hold_another_one() -> None:
    steps = [*start("ax"), *start("bx"), *start("cz")]
    assert goes_on(steps, 0) == [0, 2, 3, 4, 5]
    assert goes_on(steps, 1, 2) == [0, 1, 2, 4, 5]


def test_what_needs_the_room_of_a_model_that_stays_is_left_out() -> None:
    """After the failed start of a on z, a stays on x. So b is not started on x, nor on y, whose
    machine keeps a's weights; c on another machine is started.
    """
    assert goes_on([*start("az"), *end("ax"), *start("bx")], 0) == [0]
    assert goes_on([*start("az"), *end("ax"), *start("by")], 0) == [0]
    assert goes_on([*start("ay"), *end("ax"), *start("cz")], 0) == [0, 4, 5]
    woken = [*end("ax", MoveVerb.SLEEP), step(MoveVerb.WAKE, "bx"), step(MoveVerb.WAKE, "cy")]
    assert goes_on(woken, 1) == [0, 1, 3], "sleep frees memory of its device alone"
    words = "stop a on x was not done"
    assert hindrance([*end("ax"), *start("bx")], 2, [1], MACHINES) == words


def test_what_ends_needs_no_room() -> None:
    assert goes_on([*end("ax"), *end("bx")], 1) == [0, 1, 2, 3]


def test_a_replica_that_was_to_fall_asleep_once_started_holds_nobody() -> None:
    asleep = [step(MoveVerb.START, "ax"), step(MoveVerb.SLEEP, "ax"), *start("bx")]
    assert goes_on(asleep, 0) == [0, 2, 3]


def test_devices_of_unknown_machines_count_as_one_machine() -> None:
    steps = [*end("ax"), *start("bz")]
    assert hindrance(steps, 2, [1], {}) and not hindrance(steps, 2, [1], MACHINES)


@examples(8000)
@given(st.integers(0, 2**32))
def test_any_failures_leave_the_rest_within_memory(seed: int) -> None:
    """Steps of random paths fail at random; a replica whose start failed is removed, and one whose
    end failed stays.
    """
    random = Random(seed)
    facts = some_facts(random)
    present, wanted = some_placement(random, facts), some_placement(random, facts)
    steps = path_towards(facts, present, wanted).steps
    machines = {one.name: one.machine for one in facts.devices}
    books, undone = StepBooks(facts, present), list[int]()
    failed = {number for number in range(len(steps)) if random.random() < 0.3}
    for number, one in enumerate(steps):
        if hindrance(steps, number, undone, machines):
            undone.append(number)
        elif number in failed:
            undone.append(number)
            opened = MoveStep(MoveVerb.START, one.model, one.device)
            if any(done[:3] == opened[:3] for done in steps[: number + 1]):
                books.held.pop((one.model, one.device), None)
                books.routed.discard((one.model, one.device))
        else:
            books.do([one])
    for model in {steps[number].model for number in undone} & present.by_model.keys():
        kept = any(name == model for name, _ in books.held)
        assert kept or not wanted.of(model), f"{model} is nowhere"


class RestBooks(StepBooks):
    """Books of memory that replicas hold once they have started: while they start, their device's
    roster gives them memory one by one.
    """

    def __init__(
        self, facts: PlacementFacts, present: DevicePlacement, steps: Sequence[MoveStep]
    ) -> None:
        super().__init__(facts, present)
        self._sleep = {(one.model, one.device) for one in steps if one.verb is MoveVerb.SLEEP}

    def step(self, step: MoveStep) -> None:
        key = step.model, step.device
        if step.verb is MoveVerb.START:
            asleep = self.facts.model[step.model].hollow or key in self._sleep
            self.held[key] = self._bytes(step.model, asleep=asleep)
        else:
            super().step(step)


@examples(8000)
@given(st.integers(0, 2**32))
def test_steps_in_any_order_that_keeps_what_they_need_stay_within_memory(seed: int) -> None:
    random = Random(seed)
    facts = some_facts(random)
    present, wanted = some_placement(random, facts), some_placement(random, facts)
    steps = path_towards(facts, present, wanted).steps
    machines = {one.name: one.machine for one in facts.devices}
    books, done = RestBooks(facts, present, steps), set[int]()
    while left := [n for n in range(len(steps)) if n not in done]:
        free = [n for n in left if done.issuperset(needed(steps, n, machines))]
        done.add(number := random.choice(free))
        books.do([steps[number]])
