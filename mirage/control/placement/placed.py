"""A placement as a value: which model has a process on which device, awake or asleep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from mirage.control.placement.facts import PlacementFacts


class Stand(StrEnum):
    """State of a replica that a placement wants; a model without replicas is on disk."""

    AWAKE = "awake"
    ASLEEP = "asleep"


class ReplicaPlace(NamedTuple):
    """A replica of a model on a device, awake or asleep."""

    model: str
    device: str
    stand: Stand = Stand.AWAKE


@dataclass(frozen=True)
class DevicePlacement:
    """Replicas of all models, at most one of each on a device."""

    places: frozenset[ReplicaPlace] = frozenset()

    @classmethod
    def of_names(cls, devices: Mapping[str, Iterable[str]]) -> DevicePlacement:
        """Return the placement in which each model is awake on the devices named for it."""
        return cls(frozenset(ReplicaPlace(m, d) for m, names in devices.items() for d in names))

    @cached_property
    def by_model(self) -> Mapping[str, Mapping[str, Stand]]:
        """Replicas of each model: the state on each device, sorted by the devices' names."""
        found: dict[str, dict[str, Stand]] = {}
        for place in sorted(self.places):
            found.setdefault(place.model, {})[place.device] = place.stand
        return found

    @cached_property
    def by_device(self) -> Mapping[str, Mapping[str, Stand]]:
        """Replicas on each device: the state of each model, sorted by the models' names."""
        found: dict[str, dict[str, Stand]] = {}
        for place in sorted(self.places):
            found.setdefault(place.device, {})[place.model] = place.stand
        return found

    @property
    def devices(self) -> dict[str, list[str]]:
        """Devices of each model, those where it is awake first; more than one are replicas."""
        return {
            model: sorted(stands, key=lambda name: (stands[name] is Stand.ASLEEP, name))
            for model, stands in self.by_model.items()
        }

    def of(self, model: str) -> Mapping[str, Stand]:
        """Return the replicas of one model: the state on each device."""
        return self.by_model.get(model, {})

    def on(self, device: str) -> Mapping[str, Stand]:
        """Return the replicas on one device: the state of each model."""
        return self.by_device.get(device, {})

    def awake(self, model: str) -> list[str]:
        """Return the devices on which a model is awake."""
        return [name for name, stand in self.of(model).items() if stand is Stand.AWAKE]

    def put(self, model: str, device: str, stand: Stand = Stand.AWAKE) -> DevicePlacement:
        """Return the placement with this replica in the state `stand`."""
        return DevicePlacement(
            self.out(model, device).places | {ReplicaPlace(model, device, stand)}
        )

    def out(self, model: str, device: str) -> DevicePlacement:
        """Return the placement without a process of the model on the device."""
        gone = {ReplicaPlace(model, device, stand) for stand in Stand}
        return DevicePlacement(self.places - gone)

    def instead(self, model: str, stands: Mapping[str, Stand]) -> DevicePlacement:
        """Return the placement in which one model has these replicas and no others."""
        others = {place for place in self.places if place.model != model}
        return DevicePlacement(
            frozenset(others | {ReplicaPlace(model, d, s) for d, s in stands.items()})
        )

    def within(self, facts: PlacementFacts) -> DevicePlacement:
        """Return the replicas whose device and model are still in `facts`."""
        kept = (p for p in self.places if p.device in facts.device and p.model in facts.model)
        return DevicePlacement(frozenset(kept))


NOWHERE = DevicePlacement()


def parts(facts: PlacementFacts, placement: DevicePlacement, model: str) -> Mapping[str, float]:
    """Return the part of a model's requests that each device gets, in proportion to the speed of
    the devices' memory.

    Awake replicas get them, or else the one that wakes fastest. Empty if the model has no replica.
    """
    awake: Sequence[str] = placement.awake(model)
    if not awake:
        asleep = placement.of(model)
        awake = sorted(asleep, key=lambda name: (facts.wake_s(model, name), name))[:1]
    speeds = {name: facts.device[name].speed.memory_bytes_s for name in awake}
    total = sum(speeds.values())
    return {name: speed / total for name, speed in speeds.items()}
