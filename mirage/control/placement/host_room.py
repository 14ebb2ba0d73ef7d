"""Host memory of machines, against the masters of the models that shall come there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from mirage.control.placement.books import host_bytes
from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.placed import DevicePlacement
from mirage.units import size


class NoHostRoom(NamedTuple):
    """A model that does not come to a device, since its machine has no host memory for it."""

    model: str
    device: str
    words: str


def has_host_room(
    facts: PlacementFacts, placement: DevicePlacement, model: str, device: str
) -> bool:
    """True if the machine of a device has host memory for the master of one more replica."""
    machine = facts.machine_of(device)
    if machine.shared_masters and any(
        facts.machine_of(name) is machine for name in placement.of(model)
    ):
        return True
    taken = host_bytes(facts, placement, machine.name)
    return taken + facts.model[model].parameters <= machine.nbytes


def refused_places(
    facts: PlacementFacts,
    served: Mapping[str, Collection[str]],
    wanted: Mapping[str, Collection[str]],
) -> list[NoHostRoom]:
    """Places of those `wanted` for which there is no host memory beside what is `served` already.

    Both are models by device. Models come in the order of the facts.
    """
    places: dict[str, list[str]] = {}
    for device, models in served.items():
        for model in models:
            if model in facts.model:
                places.setdefault(model, []).append(device)
    placement, refused = DevicePlacement.of_names(places), []
    for model in facts.model:
        for device, models in wanted.items():
            if model not in models or model in served.get(device, ()):
                continue
            if has_host_room(facts, placement, model, device):
                placement = placement.put(model, device)
            else:
                words = no_host_room(facts, placement, model, device)
                refused.append(NoHostRoom(model, device, words))
    return refused


def no_host_room(facts: PlacementFacts, placement: DevicePlacement, model: str, device: str) -> str:
    """Reason why a model does not come to a device, and what to do about it."""
    machine = facts.machine_of(device)
    free = max(0, machine.nbytes - host_bytes(facts, placement, machine.name))
    return (
        f"{model} does not come to {device}: its weights take "
        f"{size(facts.model[model].parameters)} of host memory, and machine {machine.name!r} has "
        f"{size(free)} free of {size(machine.nbytes)} for weights: have it elsewhere, or fewer "
        "models there"
    )
