"""The judge by arithmetic, pressures, and proposals."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_world import overfull, some_facts, some_placement
from plain_facts import PlainMachine, PlainModel, plain_facts

from mirage.control.placement.books import opened_bytes
from mirage.control.placement.facts import ModelLoad, PlacementFacts, PlaceModel
from mirage.control.placement.judging import PlacementCourt
from mirage.control.placement.placed import NOWHERE, DevicePlacement, Stand
from mirage.control.placement.pressure import Pressures
from mirage.control.placement.proposing import aligned, best_fit, counts, greedy, proposals
from mirage.control.placement.roofline_judge import RooflineJudge
from mirage.units import GIB
from tests.examples import examples

pytestmark = pytest.mark.pure
LENDS = PlainModel(15 * GIB, 4 * GIB, GIB, 131_072)
KEEPS = LENDS._replace(least=15 * GIB)
TOGETHER = DevicePlacement.of_names({"a": ["gpu0"], "b": ["gpu0"]})


def facts_of(
    models: PlainModel, gib: int = 34, link_gb_s: float = 50.0, **arrivals_s: float
) -> PlacementFacts:
    """Facts of two equal devices with one window; `arrivals_s` has the requests per second of each
    model.
    """
    loads = {name: ModelLoad(rate, 220.0, 200.0) for name, rate in arrivals_s.items()}
    machine = PlainMachine(1000 * GIB, link_bytes_s=link_gb_s * 1e9)
    devices = {"gpu0": gib * GIB, "gpu1": gib * GIB}
    return plain_facts(devices, machine, dict.fromkeys(arrivals_s, models), [loads])


def part(facts: PlacementFacts, placement: DevicePlacement, model: str) -> float:
    """Part of a model's requests that the arithmetic judge expects within limits."""
    within, asked = RooflineJudge(facts)(placement, 0)[model]
    return within / asked


def test_a_model_on_disk_serves_nothing_and_one_that_sleeps_serves_after_its_wake() -> None:
    facts = facts_of(LENDS, a=1.0)
    asleep = NOWHERE.put("a", "gpu0", Stand.ASLEEP)
    assert part(facts, NOWHERE, "a") == 0.0
    assert 0.5 < part(facts, asleep, "a") <= part(facts, asleep.put("a", "gpu0"), "a")
    slow = facts_of(LENDS, link_gb_s=5.0, a=1.0)
    assert part(slow, asleep, "a") == 0.0, "3 s over the link, and 2 s to the first token"


def test_more_requests_and_a_neighbour_are_never_better() -> None:
    parts = [part(facts_of(LENDS, a=rate, b=0.0), TOGETHER, "a") for rate in (1, 20, 60, 120, 400)]
    assert parts == sorted(parts, reverse=True) and parts[0] > 0.99 > 0.1 > parts[-1]
    beside = facts_of(LENDS, a=30.0, b=30.0)
    assert part(beside, TOGETHER, "a") < part(
        beside, DevicePlacement.of_names({"a": ["gpu0"]}), "a"
    )


def test_an_idle_neighbour_lends_its_parameters_and_a_busy_one_over_the_link() -> None:
    """Two models share a device that is too small for the KV of 40 requests a second beside both
    models' parameters. An idle neighbour that lends its layers helps; a busy one helps more over a
    faster link.
    """
    idle = {"a": 40.0, "b": 0.0}
    assert part(facts_of(LENDS, **idle), TOGETHER, "a") > 0.99
    kept = part(facts_of(KEEPS, **idle), TOGETHER, "a")
    assert kept < 0.9
    busy = {"a": 40.0, "b": 1.0}
    fast, slow = (part(facts_of(LENDS, 34, g, **busy), TOGETHER, "a") for g in (5000.0, 10.0))
    assert fast > slow


def test_replicas_share_requests() -> None:
    facts = facts_of(LENDS, a=100.0)
    one, two = (DevicePlacement.of_names({"a": d}) for d in (["gpu0"], ["gpu0", "gpu1"]))
    assert part(facts, two, "a") > part(facts, one, "a") + 0.2


@examples(1000)
@given(st.integers(0, 2**32))
def test_any_verdict_is_a_number_of_requests(seed: int) -> None:
    random = Random(seed)
    facts = some_facts(random)
    placement = some_placement(random, facts)
    for window in range(len(facts.windows)):
        for within, asked in RooflineJudge(facts)(placement, window).values():
            assert 0 <= within <= asked * (1 + 1e-9)


# -- pressure and proposals -------------------------------------------------------------


def test_pressure_is_kv_over_what_is_free_or_may_be_lent() -> None:
    facts, kept = (facts_of(models, 31, a=8.0, b=0.0) for models in (LENDS, KEEPS))
    alone = DevicePlacement.of_names({"a": ["gpu0"]})
    assert Pressures(kept).of(TOGETHER, "gpu0") > Pressures(facts).of(TOGETHER, "gpu0")
    assert Pressures(kept).of(TOGETHER, "gpu0") > Pressures(kept).of(alone, "gpu0")
    assert Pressures(facts).of(alone, "gpu1") == 0.0
    rare, often = (facts_of(LENDS, 31, a=8.0, b=rate) for rate in (0.001, 0.1))
    assert Pressures(rare).of(TOGETHER, "gpu0") < Pressures(often).of(TOGETHER, "gpu0") / 1.5
    tight = replace(facts, models=tuple(replace(m, tpot_s=0.008) for m in facts.models))
    assert Pressures(tight).of(alone, "gpu0") > Pressures(facts).of(alone, "gpu0")


def test_a_hot_model_gets_replicas_by_its_part_of_the_mean_load() -> None:
    pressures = Pressures(facts_of(LENDS, a=150.0, b=1.0, c=0.0))
    assert counts(pressures, float("inf")) == {"a": 1, "b": 1}
    assert counts(pressures, 2.0) == {"a": 1, "b": 1}, "all there is, on two devices"
    assert counts(pressures, 1.0) == {"a": 2, "b": 1}
    assert counts(pressures, 0.1) == {"a": 2, "b": 1}, "there are two devices"
    few = replace(pressures.facts.models[0], most_replicas=1)
    facts = replace(pressures.facts, models=(few, *pressures.facts.models[1:]))
    assert counts(Pressures(facts), 0.1) == {"a": 1, "b": 1}


def test_proposals_look_at_all_windows() -> None:
    """Models a and b have load in the second window only, c and d in the first only. Both proposals
    put a and b on different devices, and c and d as well.
    """
    quiet = facts_of(KEEPS, 76, a=0.01, b=0.01, c=9.0, d=9.0)
    loads = {name: ModelLoad(9.0, 220.0, 200.0) for name in "ab"}
    facts = replace(quiet, windows=(*quiet.windows, replace(quiet.windows[0], loads=loads)))
    pressures = Pressures(facts)
    once = dict.fromkeys("abcd", 1)
    for found in (greedy(pressures, once), best_fit(pressures, once)):
        assert found is not None
        assert found.awake("a") != found.awake("b") and found.awake("c") != found.awake("d")


@examples(1000)
@given(st.integers(0, 2**32))
@pytest.mark.slow
def test_any_proposal_is_within_memory_and_best_fit_places_all_awake(seed: int) -> None:
    pressures = Pressures(some_facts(Random(seed)))
    facts = pressures.facts
    for placement in proposals(pressures):
        assert not overfull(facts, placement)
        assert all(len(p) <= facts.model[m].most_replicas for m, p in placement.by_model.items())
    replicas = counts(pressures, 1.0)
    fitted = best_fit(pressures, replicas)
    if fitted is not None:
        assert {m: len(fitted.awake(m)) for m in replicas} == replicas


def test_best_fit_finds_the_least_pressure_where_greedy_does_not() -> None:
    """Loads of 5, 4, 3, 3 and 3 on two devices. Greedy separates 5 and 4; best fit finds 5 + 4 and
    3 + 3 + 3, both 9.
    """
    facts = facts_of(
        KEEPS._replace(parameters=GIB, least=GIB),
        **dict(zip("abcde", (50.0, 40.0, 30.0, 30.0, 30.0), strict=True)),
    )
    pressures = Pressures(facts)
    replicas = counts(pressures, float("inf"))
    fitted = best_fit(pressures, replicas)
    assert fitted is not None
    assert pressures.worst(fitted) < pressures.worst(greedy(pressures, replicas))
    assert set(fitted.on("gpu0")) in ({"a", "b"}, {"c", "d", "e"})


@examples(1000)
@given(st.integers(0, 2**32))
def test_alignment_moves_no_more_and_keeps_the_bins(seed: int) -> None:
    random = Random(seed)
    facts = some_facts(random)
    present, wanted = some_placement(random, facts), some_placement(random, facts)
    found = aligned(facts, present, wanted)
    assert sorted(sorted(each.items()) for each in found.by_device.values()) == sorted(
        sorted(each.items()) for each in wanted.by_device.values()
    )
    assert not overfull(facts, found)
    assert aligned(facts, wanted, wanted) == wanted


def test_alignment_names_the_device_where_a_model_is() -> None:
    facts = facts_of(LENDS, a=1.0, b=1.0)
    present = DevicePlacement.of_names({"a": ["gpu1"], "b": ["gpu0"]})
    proposed = DevicePlacement.of_names({"a": ["gpu0"], "b": ["gpu1"]})
    assert aligned(facts, present, proposed) == present
    assert opened_bytes(facts, present, proposed) == 30 * GIB


def test_a_court_never_asks_twice_and_keeps_its_number() -> None:
    facts = facts_of(LENDS, a=1.0)
    court = PlacementCourt(facts, RooflineJudge(facts), 2)
    one, two, three = (DevicePlacement.of_names({"a": d}) for d in ([], ["gpu0"], ["gpu1"]))
    assert court.sentence(one) is court.sentence(one) and court.asked == 1
    assert court.sentence(two) is not None and not court.is_open
    assert court.sentence(three) is None and court.sentence(one) is not None and court.asked == 2


def test_a_start_takes_all_parameters_unless_it_is_hollow() -> None:
    model = PlaceModel("a", 10, 6, 1, 1.0, 1.0, 1.0, 1.0)
    assert model.start == 10 and model.lendable == 4
    assert replace(model, hollow=True).start == 1
    assert replace(model, least=12).start == 12 and replace(model, least=12).lendable == 0
