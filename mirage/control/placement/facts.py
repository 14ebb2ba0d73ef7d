"""Facts that a placement is decided by: devices, machines, models, and load in several windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Speed that the steps of engines reach on one kind of device."""

    flop_s: float
    """Floating-point operations a second."""
    memory_bytes_s: float
    """Bytes that the device reads from its own memory in a second."""
    step_s: float = 0.0
    """Fixed seconds of each step."""


@dataclass(frozen=True, slots=True)
class PlaceDevice:
    """A device, as placement sees it."""

    name: str
    machine: str
    """Name of the machine that the device is in."""
    nbytes: int
    """Bytes of the device for parameters and KV cache."""
    speed: DeviceSpeed
    link_bytes_s: float
    """Bytes a second from host memory to the device."""


@dataclass(frozen=True, slots=True)
class PlaceMachine:
    """A machine with devices, as placement sees it: its host memory and the speed of its disk."""

    name: str
    nbytes: int
    """Bytes of host memory for masters."""
    disk_bytes_s: float
    shared_masters: bool = False
    """True if all replicas of a model on its devices read one master of that model."""


@dataclass(frozen=True, slots=True)
class PlaceModel:
    """A model to place; it may have one replica on each device."""

    name: str
    parameters: int
    """Bytes of all parameters, layers and fixed ones; its master has the same size."""
    least: int
    """Bytes of a device that the model is sure of while it is awake: its least grant."""
    asleep: int
    """Bytes of a device that its process keeps asleep."""
    kv_token_bytes: float
    token_flop: float
    """Floating-point operations of one prompt token."""
    ttft_s: float
    """Limit in seconds of the time to the first token."""
    tpot_s: float
    """Limit in seconds of the time per output token."""
    most_replicas: int = 64
    start_s: float = 30.0
    """Seconds of a start without reading the parameters."""
    hollow: bool = False
    """True if the model starts asleep, and can then wake with its least grant."""
    pins: tuple[str, ...] = ()
    """Devices that the model stays on; empty if the placement chooses them."""

    @property
    def start(self) -> int:
        """Bytes of a device that a start of the model takes."""
        return self.asleep if self.hollow else max(self.least, self.parameters)

    def may_be_on(self, device: str) -> bool:
        """True if the model may be on this device: it is not pinned, or pinned to it."""
        return not self.pins or device in self.pins

    @property
    def lendable(self) -> int:
        """Bytes of the model's parameters that other models may use while it is awake."""
        return max(0, self.parameters - self.least)


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Load of one model in one window; token counts are means over its requests."""

    arrivals_s: float
    """Requests a second."""
    tokens_in: float
    tokens_out: float

    @property
    def tokens(self) -> float:
        return self.tokens_in + self.tokens_out

    @property
    def context(self) -> float:
        """Mean number of context tokens of a request that decodes."""
        return self.tokens_in + self.tokens_out / 2


NO_LOAD = ModelLoad(0.0, 0.0, 0.0)
SOME_LOAD = ModelLoad(0.1, 512.0, 128.0)
"""Load that is assumed for each model where none is known."""


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """Load of all models during `seconds`; a model that is not in `loads` has none."""

    seconds: float
    loads: Mapping[str, ModelLoad]

    def of(self, model: str) -> ModelLoad:
        return self.loads.get(model, NO_LOAD)

    def requests(self, model: str) -> float:
        """Return the number of a model's requests in the window."""
        return self.of(model).arrivals_s * self.seconds


@dataclass(frozen=True)
class PlacementFacts:
    """Facts of a decision, except the present placement. Names are unique."""

    devices: tuple[PlaceDevice, ...]
    machines: tuple[PlaceMachine, ...]
    models: tuple[PlaceModel, ...]
    windows: tuple[LoadWindow, ...]
    lacking: frozenset[tuple[str, str]] = frozenset()
    """Pairs of a model and a machine that lacks its weights."""

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
        """Return the machine that a device is in."""
        return self.machine[self.device[device].machine]

    def lacks_weights(self, model: str, device: str) -> bool:
        """True if a model's weights have to be brought to the device's machine first."""
        return (model, self.device[device].machine) in self.lacking

    @property
    def is_asked(self) -> bool:
        """True if any model has requests in any window."""
        return any(self.asked(model.name) for model in self.models)

    def asked(self, model: str) -> float:
        """Return the number of a model's requests in all windows."""
        return sum(window.requests(model) for window in self.windows)

    def wake_s(self, model: str, device: str) -> float:
        """Return the seconds to load a model's parameters from host memory to a device."""
        return self.model[model].parameters / self.device[device].link_bytes_s

    def start_s(self, model: str, device: str) -> float:
        """Return the seconds of a model's start from the disk of a device's machine."""
        one = self.model[model]
        return one.start_s + one.parameters / self.machine_of(device).disk_bytes_s
