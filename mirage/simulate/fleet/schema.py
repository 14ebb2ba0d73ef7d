"""Schema of an experiment on several devices: the devices, the placement, failures and moves."""

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
    """Time at which the device serves again, its start included; if left out, it stays lost."""

    @model_validator(mode="after")
    def _ends_later(self) -> Outage:
        if self.back_s is not None and self.back_s <= self.at_s:
            raise ValueError(f"back_s {self.back_s:g} is not after at_s {self.at_s:g}: raise it")
        return self


class SimulatedDevice(Strict):
    """One device, or `count` equal devices named with a number: ``gpu-0``, ``gpu-1`` …"""

    name: str = Field(pattern=NAME)
    hardware: str | None = None
    """Hardware profile, instead of the experiment's."""
    count: Annotated[int, Field(ge=1, le=MOST_DEVICES, strict=True)] | None = None
    lost: list[Outage] = Field(default_factory=list)
    """Times in which the device is lost, in order."""

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
        """The devices that this entry describes, each with its own name."""
        if self.count is None:
            return [self]
        width = len(str(self.count - 1))
        names = [f"{self.name}-{number:0{width}}" for number in range(self.count)]
        return [self.model_copy(update={"name": name, "count": None}) for name in names]


Part = Annotated[float, Field(ge=0, le=1)]
Interval = Annotated[float, Field(gt=0, le=1e6)]


class SimulatedMoving(Strict):
    """Changes of the placement: how often it is decided, by which judge, and the cost of a move."""

    decide_s: Interval = 60.0
    """Seconds between two decisions."""
    window_s: Interval = 120.0
    """Seconds of one window of load."""
    windows: Annotated[int, Field(ge=1, le=20)] = 3
    """Number of last complete windows that a decision uses."""
    judge: Literal["simulation", "arithmetic"] = "simulation"
    """Judge of placements: `simulation` runs each device with a window's requests, `arithmetic`
    uses means.
    """
    ttft_s: PositiveFloat = 2.0
    """Limit of each request's TTFT in seconds; `tpot_s` limits its TPOT."""
    tpot_s: PositiveFloat = 0.1
    host_gib: PositiveFloat | None = None
    """GiB of host memory for master copies; unlimited if left out."""
    disk_gb_s: PositiveFloat = 2.0
    evaluations: Count = 60
    """Most windows of placements that one decision may have judged; the next keys are further
    `PlacementRules`."""
    gain: Part = DEFAULTS.gain
    gain_per_gib: Part = DEFAULTS.gain_per_gib
    rest_s: Annotated[float, Field(ge=0, le=1e6)] = DEFAULTS.rest_s
    moves_an_hour: Annotated[int, Field(ge=0, le=10_000)] = DEFAULTS.moves_an_hour
    band: Part = DEFAULTS.band

    @property
    def rules(self) -> PlacementRules:
        """Rules by which the placement changes."""
        names = ("evaluations", "gain", "gain_per_gib", "rest_s", "moves_an_hour", "band")
        return PlacementRules(**{name: getattr(self, name) for name in names})


def _written(value: Any) -> Any:
    """A number of devices, or names alone, written as a list of mappings."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [{"name": "device", "count": value}]
    if isinstance(value, list):
        return [{"name": each} if isinstance(each, str) else each for each in value]
    return value


class FleetExperiment(Experiment):
    """An experiment on several devices, with a router before them."""

    devices: Annotated[list[SimulatedDevice], BeforeValidator(_written)] = Field(min_length=1)
    placement: dict[str, list[str]] = Field(default_factory=dict)
    """Names of the devices of each tenant; more than one are replicas. If left out, all tenants are
    on the only device.
    """
    moving: SimulatedMoving | None = None
    """If given, `placement` is the first placement, and it changes with the load. Needs
    `roster`.
    """

    @property
    def each_device(self) -> list[SimulatedDevice]:
        """All devices, an entry with a `count` replaced by that many devices. They are sorted by
        name, so that their order in the file has no effect.
        """
        return sorted((d for device in self.devices for d in device.each()), key=lambda d: d.name)
