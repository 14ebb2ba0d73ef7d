"""Proposals of whole placements: Prism's greedy, and best fit by bisection of the pressure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, inf

from mirage.control.placement.books import device_bytes, fits
from mirage.control.placement.facts import PlacementFacts, PlaceModel
from mirage.control.placement.packing import Bins
from mirage.control.placement.placed import NOWHERE, DevicePlacement, ReplicaPlace, Stand
from mirage.control.placement.pressure import Pressures

PORTIONS = (inf, 1.5, 1.0, 0.7, 0.4)
"""Parts of a device's mean load for each of which a model gets one more replica; each part leads to
proposals of its own."""
DOUBLINGS = 12
HALVINGS = 12


def proposals(pressures: Pressures) -> Iterator[DevicePlacement]:
    """Yield placements of all models, none of them twice; the order is always the same."""
    seen = set()
    for portion in PORTIONS:
        replicas = counts(pressures, portion)
        for proposed in (best_fit(pressures, replicas), greedy(pressures, replicas)):
            if proposed is not None and proposed not in seen:
                seen.add(proposed)
                yield proposed


def counts(pressures: Pressures, portion: float) -> dict[str, int]:
    """Return the number of replicas of each model with requests, so that each has the part
    `portion` of a device's mean load at most, as far as limits and devices allow. A pinned model
    has a replica on each of its devices.

    The load of a model is its pressure if it has the largest device to itself.
    """
    facts = pressures.facts
    asked = [model for model in facts.models if facts.asked(model.name) > 0]
    weights = {model.name: pressures.weight(model.name) for model in asked}
    mean = sum(weight for weight in weights.values() if weight < inf) / len(facts.devices)

    def wanted(weight: float) -> float:
        if weight == inf:
            return len(facts.devices)
        return ceil(weight / mean / portion) if weight > 0 else 1

    def count(model: PlaceModel) -> int:
        if model.pins:
            return sum(name in facts.device for name in model.pins)
        return max(
            1, min(model.most_replicas, len(facts.devices), int(wanted(weights[model.name])))
        )

    return {model.name: count(model) for model in asked}


def in_turn(pressures: Pressures, replicas: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return each replica to place, as (model, number): the first replicas of all models before the
    second ones, greatest load first."""
    facts = pressures.facts

    def rank(each: tuple[str, int]) -> tuple[int, float, int, str]:
        name, number = each
        return number, -pressures.weight(name) / replicas[name], -facts.model[name].least, name

    return sorted(
        ((m, number) for m, count in replicas.items() for number in range(count)), key=rank
    )


def greedy(pressures: Pressures, replicas: Mapping[str, int]) -> DevicePlacement:
    """Return the placement that puts each replica where the pressure with it is least; a model that
    fits nowhere awake is placed asleep."""
    facts, bins = pressures.facts, Bins(pressures, replicas)
    placement = NOWHERE
    for model, _ in in_turn(pressures, replicas):
        free = [
            each.name
            for each in facts.devices
            if each.name not in placement.of(model)
            and facts.model[model].may_be_on(each.name)
            and fits(facts, placement, ReplicaPlace(model, each.name))
        ]
        if free:
            device = min(free, key=lambda name: (bins.pressure_with(name, model), name))
            bins.add(device, model)
            placement = placement.put(model, device)
    return rested(pressures, placement)


def best_fit(pressures: Pressures, replicas: Mapping[str, int]) -> DevicePlacement | None:
    """Return the best fit under the least pressure for which all replicas fit; None if they do not
    fit at all.

    A pressure of at most T means that KV bytes plus T times parameter bytes are at most T times the
    device's bytes. So for one T each device is a bin, and T is found by bisection.
    """
    turn = in_turn(pressures, replicas)

    def packed(most: float) -> DevicePlacement | None:
        bins, placement = Bins(pressures, replicas), NOWHERE
        for model, _ in turn:
            left = [
                (bins.left_with(each.name, model, most), each.name)
                for each in pressures.facts.devices
                if each.name not in placement.of(model)
                and pressures.facts.model[model].may_be_on(each.name)
                and fits(pressures.facts, placement, ReplicaPlace(model, each.name))
            ]
            left = [each for each in left if each[0] >= 0]
            if not left:
                return None
            _, device = min(left)
            bins.add(device, model)
            placement = placement.put(model, device)
        return placement

    if (found := packed(inf)) is None:
        return None
    low, high = 0.0, max((pressures.weight(m) / replicas[m] for m, _ in turn), default=1.0)
    for _ in range(DOUBLINGS):
        if (better := packed(high)) is not None:
            found = better
            break
        low, high = high, high * 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if (better := packed(middle)) is None:
            low = middle
        else:
            high, found = middle, better
    return rested(pressures, found)


def rested(pressures: Pressures, placement: DevicePlacement) -> DevicePlacement:
    """Return the placement plus, for each model without a replica, a sleeping one where it fits.

    Models with the most requests come first.
    """
    facts = pressures.facts
    missing = [m for m in facts.models if not placement.of(m.name)]
    for model in sorted(missing, key=lambda m: (-facts.asked(m.name), m.name)):
        places = (
            ReplicaPlace(model.name, each.name, Stand.ASLEEP)
            for each in facts.devices
            if model.may_be_on(each.name)
        )
        free = [place for place in places if fits(facts, placement, place)]
        if free:
            placement = placement.put(*min(free, key=lambda p: _used(facts, placement, p.device)))
    return placement


def _used(facts: PlacementFacts, placement: DevicePlacement, device: str) -> tuple[float, str]:
    """Return the part of a device that is taken, and its name."""
    return device_bytes(facts, placement, device) / facts.device[device].nbytes, device


def aligned(
    facts: PlacementFacts, present: DevicePlacement, proposed: DevicePlacement
) -> DevicePlacement:
    """Return the proposal with equal devices exchanged, so that more replicas stay where they are.

    Proposals choose among equal devices by their names: here the bin with the largest overlap of
    bytes is assigned first, to an equal device.
    """
    overlaps = [
        (-_overlap(facts, present, a.name, proposed, b.name), a.name, b.name)
        for a in facts.devices
        for b in facts.devices
        if _alike(facts, a.name, b.name)
    ]
    named: dict[str, str] = {}
    taken = set()
    for _, here, there in sorted(overlaps):
        if here not in taken and there not in named:
            named[there] = here
            taken.add(here)
    return DevicePlacement(frozenset(p._replace(device=named[p.device]) for p in proposed.places))


def _alike(facts: PlacementFacts, one: str, other: str) -> bool:
    a, b = facts.device[one], facts.device[other]
    return (a.machine, a.nbytes, a.speed, a.link_bytes_s) == (
        b.machine,
        b.nbytes,
        b.speed,
        b.link_bytes_s,
    )


def _overlap(
    facts: PlacementFacts,
    present: DevicePlacement,
    here: str,
    proposed: DevicePlacement,
    there: str,
) -> int:
    """Return the bytes of parameters that stay if the bin `there` becomes the device `here`."""
    both = set(present.on(here)) & set(proposed.on(there))
    return sum(facts.model[name].parameters for name in both)
