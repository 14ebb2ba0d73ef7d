"""A placement as a value: which model has a process on which device, awake or asleep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from mirage.control.placement.facts import PlacementFacts


class Stand(StrEnum):
    """State in which a placement wants a replica; a model without any is on disk."""

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
        """Placement of models that are awake on the devices named for each."""
        return cls(frozenset(ReplicaPlace(m, d) for m, names in devices.items() for d in names))

    @cached_property
    def by_model(self) -> Mapping[str, Mapping[str, Stand]]:
        """Devices of each model, in the order of their names."""
        found: dict[str, dict[str, Stand]] = {}
        for place in sorted(self.places):
            found.setdefault(place.model, {})[place.device] = place.stand
        return found

    @cached_property
    def by_device(self) -> Mapping[str, Mapping[str, Stand]]:
        """Models of each device, in the order of their names."""
        found: dict[str, dict[str, Stand]] = {}
        for place in sorted(self.places):
            found.setdefault(place.device, {})[place.model] = place.stand
        return found

    @property
    def devices(self) -> dict[str, list[str]]:
        """Devices of each model, those where it is awake first: several are replicas."""
        return {
            model: sorted(stands, key=lambda name: (stands[name] is Stand.ASLEEP, name))
            for model, stands in self.by_model.items()
        }

    def of(self, model: str) -> Mapping[str, Stand]:
        """Devices of one model."""
        return self.by_model.get(model, {})

    def on(self, device: str) -> Mapping[str, Stand]:
        """Models of one device."""
        return self.by_device.get(device, {})

    def awake(self, model: str) -> list[str]:
        """Devices on which it is awake."""
        return [name for name, stand in self.of(model).items() if stand is Stand.AWAKE]

    def put(self, model: str, device: str, stand: Stand = Stand.AWAKE) -> DevicePlacement:
        """Placement in which it stands so there."""
        return DevicePlacement(
            self.out(model, device).places | {ReplicaPlace(model, device, stand)}
        )

    def out(self, model: str, device: str) -> DevicePlacement:
        """Placement in which it has no process there."""
        gone = {ReplicaPlace(model, device, stand) for stand in Stand}
        return DevicePlacement(self.places - gone)

    def instead(self, model: str, stands: Mapping[str, Stand]) -> DevicePlacement:
        """Placement in which one model has these devices and no others."""
        others = {place for place in self.places if place.model != model}
        return DevicePlacement(
            frozenset(others | {ReplicaPlace(model, d, s) for d, s in stands.items()})
        )

    def within(self, facts: PlacementFacts) -> DevicePlacement:
        """Replicas whose device and model there still are."""
        kept = (p for p in self.places if p.device in facts.device and p.model in facts.model)
        return DevicePlacement(frozenset(kept))


NOWHERE = DevicePlacement()


def parts(facts: PlacementFacts, placement: DevicePlacement, model: str) -> Mapping[str, float]:
    """Part of a model's requests that each device gets, by the speed of its memory.

    Replicas that are awake get them, or else the one that wakes fastest; empty if it is on disk.
    """
    awake: Sequence[str] = placement.awake(model)
    if not awake:
        asleep = placement.of(model)
        awake = sorted(asleep, key=lambda name: (facts.wake_s(model, name), name))[:1]
    speeds = {name: facts.device[name].speed.memory_bytes_s for name in awake}
    total = sum(speeds.values())
    return {name: speed / total for name, speed in speeds.items()}
