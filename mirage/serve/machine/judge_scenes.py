"""Inputs of simulations, the scenes, for the judge of placements: one for each device, with all
models that fit there.

A scene has a configuration and facts about its engines, but no requests.
Step times are those of `device.profile`; if it does not cover a model, they follow from the
device's speeds, which are among the facts of a placement. Both are for an engine that has the
device to itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from mirage.config import Config, DeviceSection
from mirage.control.placement.facts import DeviceSpeed, PlacementFacts, PlaceModel
from mirage.control.placement.placed import Stand
from mirage.control.roster.needs import NeverServedError
from mirage.control.targets import DoesNotFitError
from mirage.facts import ModelFacts
from mirage.serve.fit.fit import fit, with_shares
from mirage.serve.whatif.forms import Scene, SceneSteps
from mirage.serve.whatif.scenes import scene
from mirage.serve.whatif.world import config_of, world
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.fleet.judging import KindOfDevice
from mirage.simulate.roofline import PS
from mirage.simulate.world import World
from mirage.workload.dealing import clip


def judge_scenes(
    config: Config,
    told: Mapping[str, ModelFacts],
    facts: PlacementFacts,
    devices: Mapping[str, DeviceSection],
) -> dict[str, Scene]:
    """Scenes by device, each with all models that fit; devices on which none fits are left out.

    Raises `ConfigError` if a profile cannot be read.
    """
    found = {}
    for name, section in devices.items():
        here = config.model_copy(update={"device": section, "roster": config.roster})
        here = with_shares(here, told)
        fits, _ = fit(here, told)
        if fits:
            device = facts.device[name]
            made = scene(here, fits, {}, device.link_bytes_s)
            found[name] = _stepping(made, facts, device.speed)
    return found


def _stepping(made: Scene, facts: PlacementFacts, speed: DeviceSpeed) -> Scene:
    """The scene with step times for each tenant. Its tenants sleep and wake as requests need them,
    and slow each other down when they step at the same time."""
    tenants = {
        name: one if one.steps else msgspec.structs.replace(one, steps=steps)
        for name, one in made.tenants.items()
        for steps in [steps_by_speed(facts.model[name], speed)]
    }
    return msgspec.structs.replace(made, tenants=tenants, comes_and_goes=True, shares_compute=True)


def steps_by_speed(model: PlaceModel, speed: DeviceSpeed) -> SceneSteps:
    """Step times by a device's speeds: limited by reading parameters and KV, or by arithmetic."""
    kv, flop = model.kv_token_bytes / speed.memory_bytes_s, model.token_flop / speed.flop_s
    traffic = (model.parameters / speed.memory_bytes_s, kv, kv, kv, 0.0)
    arithmetic = (0.0, flop, 0.0, flop, 0.0)
    overhead = (speed.step_s, 0.0, 0.0, 0.0, 0.0)
    bounds = [tuple(round(one * PS) for one in bound) for bound in (traffic, arithmetic, overhead)]
    return msgspec.convert(
        {"compute": bounds[:2], "overhead": bounds[2], "source": "speeds of the device"}, SceneSteps
    )


class SceneKind:
    """Function that makes simulated worlds, one in each call, of any of the devices with equal
    scenes (a `KindOfDevice`).

    Tenants that do not fit there are left out. If the share of another one does not hold its model,
    or if one has no room beside those that are pinned, the world has no engines.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._longest = {one.name: one.max_model_len for one in config_of(scene).tenants}

    def __call__(
        self, asked: Mapping[str, list[SimulatedRequest]], stands: Mapping[str, Stand]
    ) -> World:
        there = {name: stand for name, stand in stands.items() if name in self._longest}
        requests = {name: [self._cut(name, one) for one in asked[name]] for name in there}
        if not there:
            return World()
        try:
            return world(only(self._scene, there), requests, there)
        except (DoesNotFitError, NeverServedError):
            return World()

    def _cut(self, name: str, one: SimulatedRequest) -> SimulatedRequest:
        prompt, output = clip(one.prompt, max(1, one.output), self._longest[name])
        return SimulatedRequest(one.number, one.arrival, prompt, output)


def only(scene: Scene, names: Collection[str]) -> Scene:
    """Scene with only these tenants of `scene`."""
    tenants = {name: one for name, one in scene.tenants.items() if name in names}
    sections = [one for one in scene.config["tenants"] if one["name"] in tenants]
    return msgspec.structs.replace(
        scene, config=scene.config | {"tenants": sections}, tenants=tenants
    )


def nothing_fits(asked: Mapping[str, list[SimulatedRequest]], stands: Mapping[str, Stand]) -> World:
    """Simulation of a device on which no model fits (a `KindOfDevice`): a world without engines."""
    return World()


def scene_kinds(scenes: Mapping[str, Scene], devices: Collection[str]) -> dict[str, KindOfDevice]:
    """Return for each device the function with which the judge makes a simulation of it. Devices
    with equal scenes have the same function; a device without a scene has one that simulates no
    engine.
    """
    kinds: list[tuple[Scene, KindOfDevice]] = []
    found: dict[str, KindOfDevice] = {}
    for name in devices:
        if (own := scenes.get(name)) is None:
            found[name] = nothing_fits
            continue
        if (known := next((kind for other, kind in kinds if other == own), None)) is None:
            known = SceneKind(own)
            kinds.append((own, known))
        found[name] = known
    return found
