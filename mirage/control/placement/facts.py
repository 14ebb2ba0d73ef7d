"""Facts that a placement is decided by: devices, machines, models, and load in several windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Speed of one kind of device, as its steps reach it."""

    flop_s: float
    """Floating-point operations a second."""
    memory_bytes_s: float
    """Bytes that it reads of its own memory in a second."""
    step_s: float = 0.0
    """Seconds of each step, whatever is in it."""


@dataclass(frozen=True, slots=True)
class PlaceDevice:
    """A device, as placement sees it."""

    name: str
    machine: str
    """Name of the machine that it is in."""
    nbytes: int
    """Bytes for parameters and KV cache."""
    speed: DeviceSpeed
    link_bytes_s: float
    """Bytes a second from host memory to it."""


@dataclass(frozen=True, slots=True)
class PlaceMachine:
    """A machine with devices, as placement sees it: its host memory and the speed of its disk."""

    name: str
    nbytes: int
    """Bytes of host memory for masters."""
    disk_bytes_s: float
    shared_masters: bool = False
    """True if replicas on its devices read one master."""


@dataclass(frozen=True, slots=True)
class PlaceModel:
    """A model to place; it may have one replica on each device."""

    name: str
    parameters: int
    """Bytes of all layers and of what never moves; so large is its master, too."""
    least: int
    """Bytes of a device that it is sure of while it is awake: its least grant."""
    asleep: int
    """Bytes of a device that its process cannot give."""
    kv_token_bytes: float
    token_flop: float
    """Floating-point operations of one prompt token."""
    ttft_s: float
    """Limit of the time to the first token."""
    tpot_s: float
    """Limit of the time per output token."""
    most_replicas: int = 64
    start_s: float = 30.0
    """Seconds of a start beside reading the parameters."""
    hollow: bool = False
    """True if it starts asleep, and then wakes with as little as its least grant."""
    pins: tuple[str, ...] = ()
    """Devices that it is on and stays on; none leaves the choice to the placement."""

    @property
    def start(self) -> int:
        """Bytes of a device that its start takes."""
        return self.asleep if self.hollow else max(self.least, self.parameters)

    def may_be_on(self, device: str) -> bool:
        """False for another device than those that it is pinned to."""
        return not self.pins or device in self.pins

    @property
    def lendable(self) -> int:
        """Bytes of its parameters that others may have while it is awake."""
        return max(0, self.parameters - self.least)


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Load of one model in one window. Tokens are means of a request."""

    arrivals_s: float
    """Requests a second."""
    tokens_in: float
    tokens_out: float

    @property
    def tokens(self) -> float:
        return self.tokens_in + self.tokens_out

    @property
    def context(self) -> float:
        """Mean tokens of context of a request that decodes."""
        return self.tokens_in + self.tokens_out / 2


NO_LOAD = ModelLoad(0.0, 0.0, 0.0)
SOME_LOAD = ModelLoad(0.1, 512.0, 128.0)
"""Load of each model where none is known."""


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """Load of all models over a time; a model that is not named has none."""

    seconds: float
    loads: Mapping[str, ModelLoad]

    def of(self, model: str) -> ModelLoad:
        return self.loads.get(model, NO_LOAD)

    def requests(self, model: str) -> float:
        """Number of its requests in the window."""
        return self.of(model).arrivals_s * self.seconds


@dataclass(frozen=True)
class PlacementFacts:
    """All that a decision looks at, but for the present placement. Names are unique."""

    devices: tuple[PlaceDevice, ...]
    machines: tuple[PlaceMachine, ...]
    models: tuple[PlaceModel, ...]
    windows: tuple[LoadWindow, ...]
    lacking: frozenset[tuple[str, str]] = frozenset()
    """Models with machines that lack their weights."""

    @cached_property
    def device(self) -> Mapping[str, PlaceDevice]:
        return {each.name: each for each in self.devices}

    @cached_property
    def machine(self) -> Mapping[str, PlaceMachine]:
        return {each.name: each for each in self.machines}

    @cached_property
    def model(self) -> Mapping[str, PlaceModel]:
        return {each.name: each for each in self.models}

    def machine_of(self, device: str) -> PlaceMachine:
        """Machine that a device is in."""
        return self.machine[self.device[device].machine]

    def lacks_weights(self, model: str, device: str) -> bool:
        """True if a model's weights have to be brought to the device's machine first."""
        return (model, self.device[device].machine) in self.lacking

    @property
    def is_asked(self) -> bool:
        """True if anybody asks for any model."""
        return any(self.asked(model.name) for model in self.models)

    def asked(self, model: str) -> float:
        """Number of its requests in all windows."""
        return sum(window.requests(model) for window in self.windows)

    def wake_s(self, model: str, device: str) -> float:
        """Seconds in which its parameters come from host memory to a device."""
        return self.model[model].parameters / self.device[device].link_bytes_s

    def start_s(self, model: str, device: str) -> float:
        """Seconds of its start from the disk."""
        one = self.model[model]
        return one.start_s + one.parameters / self.machine_of(device).disk_bytes_s
