"""Bytes of devices and of host memory that a placement takes, and the check that one more replica
fits."""

from __future__ import annotations

from collections import Counter

from mirage.control.placement.facts import PlacementFacts, PlaceModel
from mirage.control.placement.placed import DevicePlacement, ReplicaPlace, Stand


def held(model: PlaceModel, stand: Stand) -> int:
    """Return the bytes of device memory that a replica is certain to hold, awake or asleep."""
    return model.least if stand is Stand.AWAKE else model.asleep


def device_bytes(facts: PlacementFacts, placement: DevicePlacement, device: str) -> int:
    """Return the bytes of a device that its replicas are certain to hold."""
    return sum(held(facts.model[name], stand) for name, stand in placement.on(device).items())


def host_bytes(facts: PlacementFacts, placement: DevicePlacement, machine: str) -> int:
    """Return the bytes of host memory for the masters of all models that have a process on a
    machine: one for each process, or one for each model if the machine has `shared_masters`."""
    names = [p.model for p in placement.places if facts.device[p.device].machine == machine]
    shared = facts.machine[machine].shared_masters
    return sum(facts.model[name].parameters for name in (set(names) if shared else names))


def fits(facts: PlacementFacts, placement: DevicePlacement, place: ReplicaPlace) -> bool:
    """True if a replica may start or wake beside all others: its bytes fit on the device, and its
    master in host memory."""
    model, machine = facts.model[place.model], facts.machine_of(place.device)
    used = device_bytes(facts, placement, place.device)
    need = held(model, place.stand)
    if (there := placement.on(place.device).get(place.model)) is not None:
        return used - held(model, there) + need <= facts.device[place.device].nbytes
    if used + max(model.start, need) > facts.device[place.device].nbytes:
        return False
    there_too = any(facts.machine_of(name) is machine for name in placement.of(place.model))
    master = 0 if machine.shared_masters and there_too else model.parameters
    return host_bytes(facts, placement, machine.name) + master <= machine.nbytes


def opened_bytes(facts: PlacementFacts, present: DevicePlacement, wanted: DevicePlacement) -> int:
    """Return the bytes that starts and wakes load for the placement `wanted`.

    The first replica of a model without a replica in `present` is not counted, because without one
    the model is not served.
    """
    new = Counter(p.model for p in wanted.places - present.places if not _only_sleeps(present, p))
    return sum(
        facts.model[name].parameters * (count if present.of(name) else count - 1)
        for name, count in new.items()
    )


def _only_sleeps(present: DevicePlacement, place: ReplicaPlace) -> bool:
    return place.stand is Stand.ASLEEP and place.device in present.of(place.model)
