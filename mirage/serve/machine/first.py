"""The first placement of a machine: what is named stays, all others go where a judge has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from mirage.control.placement.books import device_bytes
from mirage.control.placement.deciding import Placer
from mirage.control.placement.facts import SOME_LOAD, LoadWindow, PlacementFacts
from mirage.control.placement.placed import DevicePlacement, Stand
from mirage.control.placement.roofline_judge import RooflineJudge
from mirage.control.placement.rules import PlacementPast, PlacementRules
from mirage.control.placement.steps import MoveStep, MoveVerb
from mirage.control.placement.words import placement_lines

WINDOW_S = 600.0
NAMED = "named in the file"
LEFT = "a server that died has left its engine there"
STAYS = "it stays"


class TenantPlaced(NamedTuple):
    """Devices that serve one tenant: with several, each has a replica."""

    devices: tuple[str, ...]
    why: str


class Stays(NamedTuple):
    """Places of models that name none and shall stay where they are, for one reason."""

    places: Mapping[str, tuple[str, ...]]
    why: str


class FirstPlacement(NamedTuple):
    """Places of all tenants, and lines about the decision."""

    places: dict[str, TenantPlaced]
    lines: list[str]


def as_named(named: Mapping[str, tuple[str, ...]]) -> FirstPlacement:
    """Placement where each tenant names its devices: nothing is decided."""
    return FirstPlacement({name: TenantPlaced(d, NAMED) for name, d in named.items()}, [])


def first_placement(facts: PlacementFacts, stays: Stays, rules: PlacementRules) -> FirstPlacement:
    """Placement of all models, of whose load nothing is known.

    Those with `pins` are there, and likewise those that stay. What fits nowhere
    beside the others is where most is free, and comes and goes.
    """
    pinned = {m.name: m.pins or stays.places.get(m.name, ()) for m in facts.models}
    window = LoadWindow(WINDOW_S, dict.fromkeys(pinned, SOME_LOAD))
    models = tuple(replace(model, pins=pinned[model.name]) for model in facts.models)
    asked = replace(facts, models=models, windows=(window,))
    present = DevicePlacement.of_names({name: d for name, d in pinned.items() if d})
    decision = Placer(rules).decide(asked, RooflineJudge(asked), present, PlacementPast(), 0.0)
    placement, places = decision.placement, {}
    for model in facts.models:
        if not placement.of(model.name):
            placement = placement.put(model.name, _freest(asked, placement))
            why = "it fits nowhere beside the others: tenants come and go there"
        else:
            why = NAMED if model.pins else stays.why if pinned[model.name] else "placed"
        places[model.name] = TenantPlaced(tuple(placement.devices[model.name]), why)
    return FirstPlacement(places, placement_lines(asked, replace(decision, placement=placement)))


def squeezed(
    facts: PlacementFacts, placement: DevicePlacement, models: Iterable[str]
) -> tuple[DevicePlacement, tuple[MoveStep, ...]]:
    """Placement where those of `models` that are nowhere have a place as well, and steps to it.

    Those that are asked for most come first. Where they do not fit, tenants come and go: each is
    awake once it is asked for.
    """
    steps: tuple[MoveStep, ...] = ()
    nowhere = (name for name in models if name in facts.model and not placement.of(name))
    for name in sorted(nowhere, key=lambda name: (-facts.asked(name), name)):
        device = _freest(facts, placement)
        placement = placement.put(name, device, Stand.ASLEEP)
        why = "it fits nowhere beside the others: most is free here"
        lacks = (name, facts.device[device].machine) in facts.lacking
        verbs = [*([MoveVerb.BRING] if lacks else []), MoveVerb.START, MoveVerb.ROUTE]
        steps += tuple(MoveStep(verb, name, device, why) for verb in verbs)
    return placement, steps


def _freest(facts: PlacementFacts, placement: DevicePlacement) -> str:
    """Device with the largest part that no least grant has."""
    return max(
        facts.devices, key=lambda d: 1 - device_bytes(facts, placement, d.name) / d.nbytes
    ).name
