"""Schema of an experiment on several devices: which there are, what runs where, what fails when."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from mirage.config import NAME, Strict
from mirage.simulate.experiment import Experiment

MOST_DEVICES = 1000
Moment = Annotated[float, Field(ge=0, le=1e9)]


class Outage(Strict):
    """Time in which a device is lost, in seconds of the run."""

    at_s: Moment
    back_s: Moment | None = None
    """Time at which it serves again, its start included; it stays away if left out."""

    @model_validator(mode="after")
    def _ends_later(self) -> Outage:
        if self.back_s is not None and self.back_s <= self.at_s:
            raise ValueError(f"back_s {self.back_s:g} is not after at_s {self.at_s:g}: raise it")
        return self


class SimulatedDevice(Strict):
    """One device, or `count` alike whose names have a number behind: ``gpu-0``, ``gpu-1`` …"""

    name: str = Field(pattern=NAME)
    hardware: str | None = None
    """Instead of the experiment's."""
    count: Annotated[int, Field(ge=1, le=MOST_DEVICES, strict=True)] | None = None
    lost: list[Outage] = Field(default_factory=list)
    """Times in which it is lost, in their order."""

    @model_validator(mode="after")
    def _is_lost_in_order(self) -> SimulatedDevice:
        for one, other in pairwise(self.lost):
            if one.back_s is None or other.at_s < one.back_s:
                raise ValueError(
                    f"device {self.name!r} is lost at {other.at_s:g} s and was not back: write its "
                    "losses in order, each after the one before ended"
                )
        return self

    def each(self) -> list[SimulatedDevice]:
        """Devices that it stands for, under their own names."""
        if self.count is None:
            return [self]
        width = len(str(self.count - 1))
        names = [f"{self.name}-{number:0{width}}" for number in range(self.count)]
        return [self.model_copy(update={"name": name, "count": None}) for name in names]


def _written(value: Any) -> Any:
    """A number of devices, or names alone, in full."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [{"name": "device", "count": value}]
    if isinstance(value, list):
        return [{"name": each} if isinstance(each, str) else each for each in value]
    return value


class FleetExperiment(Experiment):
    """An experiment on several devices, with a router before them."""

    devices: Annotated[list[SimulatedDevice], BeforeValidator(_written)] = Field(min_length=1)
    placement: dict[str, list[str]] = Field(default_factory=dict)
    """Devices of each tenant; several are replicas. Left out, all are on the only device."""

    @property
    def each_device(self) -> list[SimulatedDevice]:
        """Devices one by one, by their names: the order in the file changes nothing."""
        return sorted((d for device in self.devices for d in device.each()), key=lambda d: d.name)
