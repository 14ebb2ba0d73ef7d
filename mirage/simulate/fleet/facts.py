"""Facts for the placement code, from an experiment on several devices. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mirage.control.placement.facts import (
    DeviceSpeed,
    LoadWindow,
    PlaceDevice,
    PlaceMachine,
    PlacementFacts,
    PlaceModel,
)
from mirage.geometry import asleep_bytes, footprint
from mirage.profiles import Hardware, Model
from mirage.protocol import ModelShape
from mirage.simulate.fleet.schema import SimulatedMoving
from mirage.simulate.fleet.setup import FleetSetup
from mirage.units import GIB

MACHINE = "machine"
"""Name of the machine that has all devices of an experiment."""
UNLIMITED = 1 << 60
"""Bytes of host memory if the experiment does not limit it."""


def place_device(name: str, hardware: Hardware) -> PlaceDevice:
    """A device for the placement code, with the speeds of `hardware`."""
    step_s = hardware.step_overhead_ms.value / 1e3
    speed = DeviceSpeed(hardware.flop_per_s, hardware.bytes_per_s, step_s)
    link = hardware.link_gb_s.value * 1e9
    return PlaceDevice(name, MACHINE, hardware.memory_bytes, speed, link)


def place_model(
    name: str,
    model: Model,
    shape: ModelShape,
    *,
    sleeps: bool,
    start_s: float,
    ttft_s: float,
    tpot_s: float,
) -> PlaceModel:
    """A model for the placement code. Its bytes are the parameters and the KV of its longest
    request.

    A model that sleeps is only entitled to the bytes that it holds asleep; any other to all its
    bytes.
    """
    whole, asleep = footprint(shape, 0, shape.min_extents), asleep_bytes(shape)
    weights = model.layers * model.active_layer_weights + model.head_weights
    return PlaceModel(
        name,
        whole,
        asleep if sleeps else whole,
        asleep,
        model.kv_token_bytes,
        token_flop=2.0 * weights,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        start_s=start_s,
    )


class FleetFacts:
    """Facts of an experiment whose placement changes, for any time of its run."""

    def __init__(self, setup: FleetSetup, moving: SimulatedMoving) -> None:
        roster = setup.experiment.roster
        assert roster is not None, "a placement changes with a roster alone"
        self._devices = {
            name: place_device(name, of.hardware) for name, of in setup.devices.items()
        }
        host = UNLIMITED if moving.host_gib is None else int(moving.host_gib * GIB)
        self._machines = (PlaceMachine(MACHINE, host, moving.disk_gb_s * 1e9),)
        self._models = tuple(
            place_model(
                tenant.name,
                setup.models[tenant.name],
                setup.shapes[tenant.name],
                sleeps=True,
                start_s=roster.start_s,
                ttft_s=moving.ttft_s,
                tpot_s=moving.tpot_s,
            )
            for tenant in setup.experiment.tenants
        )

    def of(self, devices: Collection[str], windows: Sequence[LoadWindow]) -> PlacementFacts:
        """Facts while only `devices` are present, with the load in `windows`."""
        there = tuple(one for name, one in self._devices.items() if name in devices)
        return PlacementFacts(there, self._machines, self._models, tuple(windows))
