"""Facts of placement worlds for tests, made of names and bytes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mirage.control.placement.deciding import PlacementDecision, Placer
from mirage.control.placement.facts import (
    SOME_LOAD,
    DeviceSpeed,
    LoadWindow,
    ModelLoad,
    PlaceDevice,
    PlaceMachine,
    PlacementFacts,
    PlaceModel,
)
from mirage.control.placement.placed import NOWHERE
from mirage.control.placement.roofline_judge import RooflineJudge
from mirage.control.placement.rules import DEFAULTS, PlacementPast, PlacementRules

MACHINE = "this machine"
WINDOW_S = 600.0


class PlainModel(NamedTuple):
    """A model by its bytes, as in `PlaceModel`; limits in seconds."""

    parameters: int
    least: int
    asleep: int
    kv_token_bytes: float
    ttft_s: float = 2.0
    tpot_s: float = 0.1


class PlainMachine(NamedTuple):
    """Speeds of the devices, which are all equal, and of their one machine."""

    host_bytes: int
    flop_s: float = 400e12
    memory_bytes_s: float = 2.5e12
    link_bytes_s: float = 50e9
    disk_bytes_s: float = 2e9
    weight_bytes: int = 2
    """Bytes of one parameter."""


def plain_facts(
    devices: Mapping[str, int],
    machine: PlainMachine,
    models: Mapping[str, PlainModel],
    loads: Sequence[Mapping[str, ModelLoad]] = (),
) -> PlacementFacts:
    """Facts of one machine. `devices` has the bytes of each device by name. `loads` has the load of
    each model in each window; all windows are equally long.
    """
    speed = DeviceSpeed(machine.flop_s, machine.memory_bytes_s)
    return PlacementFacts(
        tuple(
            PlaceDevice(name, MACHINE, nbytes, speed, machine.link_bytes_s)
            for name, nbytes in devices.items()
        ),
        (PlaceMachine(MACHINE, machine.host_bytes, machine.disk_bytes_s),),
        tuple(
            PlaceModel(
                name,
                model.parameters,
                model.least,
                model.asleep,
                model.kv_token_bytes,
                token_flop=2 * model.parameters / machine.weight_bytes,
                ttft_s=model.ttft_s,
                tpot_s=model.tpot_s,
            )
            for name, model in models.items()
        ),
        tuple(LoadWindow(WINDOW_S, known) for known in loads or [dict.fromkeys(models, SOME_LOAD)]),
    )


def first_placement(facts: PlacementFacts, rules: PlacementRules = DEFAULTS) -> PlacementDecision:
    """Decision for models that run nowhere yet, with the arithmetic judge (`RooflineJudge`)."""
    return Placer(rules).decide(facts, RooflineJudge(facts), NOWHERE, PlacementPast(), 0.0)
