"""First placement of a machine's tenants: those that name devices are placed there, the others by
the predictions of a judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from mirage.control.placement.books import device_bytes
from mirage.control.placement.deciding import Placer
from mirage.control.placement.facts import SOME_LOAD, LoadWindow, PlaceDevice, PlacementFacts
from mirage.control.placement.host_room import has_host_room
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
    """Devices that serve one tenant, each with a replica, and the reason."""

    devices: tuple[str, ...]
    why: str


class Stays(NamedTuple):
    """Devices of models that name none and shall stay where they are, and the reason."""

    places: Mapping[str, tuple[str, ...]]
    why: str


class FirstPlacement(NamedTuple):
    """Places of all tenants, and lines about the decision."""

    places: dict[str, TenantPlaced]
    lines: list[str]


def as_named(named: Mapping[str, tuple[str, ...]]) -> FirstPlacement:
    """Placement if each tenant names its devices, so that nothing is decided."""
    return FirstPlacement({name: TenantPlaced(d, NAMED) for name, d in named.items()}, [])


def first_placement(facts: PlacementFacts, stays: Stays, rules: PlacementRules) -> FirstPlacement:
    """Place all models, before anything is known of their load.

    Models with `pins` are placed on these devices, and models in `stays` stay. A model that fits on
    no device beside the others goes to the device with the largest fraction of memory free. The
    tenants of that device then sleep and wake as requests need them.
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
    """`placement` with a place added for each of `models` that has none, and the steps that start
    these models there.

    Models with more requests come first. Each gets a place, asleep, on the device with the largest
    fraction of memory free. If that device has no room for all its tenants awake, they sleep and
    wake as requests need them. A model for whose master no machine has host memory gets no place.
    """
    steps: tuple[MoveStep, ...] = ()
    nowhere = (name for name in models if name in facts.model and not placement.of(name))
    for name in sorted(nowhere, key=lambda name: (-facts.asked(name), name)):
        if (device := _freest_with_room(facts, placement, name)) is None:
            continue
        placement = placement.put(name, device, Stand.ASLEEP)
        why = "it fits nowhere beside the others: most is free here"
        lacks = (name, facts.device[device].machine) in facts.lacking
        verbs = [*([MoveVerb.BRING] if lacks else []), MoveVerb.START, MoveVerb.ROUTE]
        steps += tuple(MoveStep(verb, name, device, why) for verb in verbs)
    return placement, steps


def _freest_with_room(facts: PlacementFacts, placement: DevicePlacement, model: str) -> str | None:
    """Device with the largest fraction of memory free (`_freest`) among those whose machines have
    host memory for the model; None if no machine has.
    """
    devices = tuple(d for d in facts.devices if has_host_room(facts, placement, model, d.name))
    return _freest(facts, placement, devices) if devices else None


def _freest(
    facts: PlacementFacts,
    placement: DevicePlacement,
    among: tuple[PlaceDevice, ...] | None = None,
) -> str:
    """Device of `among` (None: of all) with the largest fraction of memory free, if each model
    placed there takes only the least that it needs.
    """
    return max(
        among or facts.devices, key=lambda d: 1 - device_bytes(facts, placement, d.name) / d.nbytes
    ).name
