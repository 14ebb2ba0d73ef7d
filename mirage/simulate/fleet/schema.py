"""Schema of an experiment on several devices: which there are, what runs where, fails and moves."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from mirage.config import NAME, Count, Strict
from mirage.control.placement.rules import DEFAULTS, PlacementRules
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


Part = Annotated[float, Field(ge=0, le=1)]
Interval = Annotated[float, Field(gt=0, le=1e6)]


class SimulatedMoving(Strict):
    """Placement over time: how often it is decided, by what, and what a move costs."""

    decide_s: Interval = 60.0
    """Seconds between two decisions."""
    window_s: Interval = 120.0
    """Seconds of a window of load."""
    windows: Annotated[int, Field(ge=1, le=20)] = 3
    """Last whole windows that a decision looks at."""
    judge: Literal["simulation", "arithmetic"] = "simulation"
    """Judge of placements: each device simulated with a window's requests, or means alone."""
    ttft_s: PositiveFloat = 2.0
    """This and the next: limits of each request."""
    tpot_s: PositiveFloat = 0.1
    host_gib: PositiveFloat | None = None
    """Host memory for masters; unlimited if left out."""
    disk_gb_s: PositiveFloat = 2.0
    evaluations: Count = 60
    """This and what follows: as the rules of a placement."""
    gain: Part = DEFAULTS.gain
    gain_per_gib: Part = DEFAULTS.gain_per_gib
    rest_s: Annotated[float, Field(ge=0, le=1e6)] = DEFAULTS.rest_s
    moves_an_hour: Annotated[int, Field(ge=0, le=10_000)] = DEFAULTS.moves_an_hour
    band: Part = DEFAULTS.band

    @property
    def rules(self) -> PlacementRules:
        """Rules that the placement changes by."""
        names = ("evaluations", "gain", "gain_per_gib", "rest_s", "moves_an_hour", "band")
        return PlacementRules(**{name: getattr(self, name) for name in names})


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
    moving: SimulatedMoving | None = None
    """Given, with a `roster`, the placement is the first one and changes by load."""

    @property
    def each_device(self) -> list[SimulatedDevice]:
        """Devices one by one, by their names: the order in the file changes nothing."""
        return sorted((d for device in self.devices for d in device.each()), key=lambda d: d.name)
