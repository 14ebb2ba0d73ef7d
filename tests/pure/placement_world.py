"""Random worlds of devices, machines, models and loads, and the test's own books of a move."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

from mirage.control.placement.books import device_bytes, fits, host_bytes
from mirage.control.placement.facts import (
    DeviceSpeed,
    LoadWindow,
    ModelLoad,
    PlaceDevice,
    PlaceMachine,
    PlacementFacts,
    PlaceModel,
)
from mirage.control.placement.placed import NOWHERE, DevicePlacement, ReplicaPlace, Stand
from mirage.control.placement.steps import MoveStep, MoveVerb
from mirage.units import GIB

KINDS = (
    (DeviceSpeed(400e12, 2.5e12), 50e9),
    (DeviceSpeed(150e12, 1.2e12, 0.001), 12e9),
    (DeviceSpeed(400e12, 3.0e12), 400e9),
)


def some_facts(random: Random) -> PlacementFacts:
    """Random facts: 1 to 5 devices on 1 or 2 machines, up to 7 models, up to 3 windows of load."""
    machines = tuple(
        PlaceMachine(f"m{i}", random.randint(20, 300) * GIB, 2e9, random.random() < 0.5)
        for i in range(random.randint(1, 2))
    )
    devices = tuple(some_device(random, f"d{i}", machines) for i in range(random.randint(1, 5)))
    models = tuple(some_model(random, f"a{i}") for i in range(random.randint(1, 7)))
    windows = tuple(
        LoadWindow(600.0, {m.name: some_load(random) for m in models if random.random() < 0.8})
        for _ in range(random.randint(1, 3))
    )
    pairs = [(model.name, machine.name) for model in models for machine in machines]
    lacking = frozenset(pair for pair in pairs if random.random() < 0.3)
    return PlacementFacts(devices, machines, models, windows, lacking)


def some_device(random: Random, name: str, machines: tuple[PlaceMachine, ...]) -> PlaceDevice:
    speed, link = random.choice(KINDS)
    machine = random.choice(machines).name
    return PlaceDevice(name, machine, random.choice((24, 40, 80)) * GIB, speed, link)


def some_model(random: Random, name: str) -> PlaceModel:
    parameters = random.randint(2, 30) * GIB
    least = parameters if random.random() < 0.3 else random.randint(GIB, parameters + GIB)
    return PlaceModel(
        name,
        parameters,
        least=least,
        asleep=min(least, GIB),
        kv_token_bytes=random.choice((50_000, 131_072, 800_000)),
        token_flop=float(parameters),
        ttft_s=random.choice((0.5, 2.0, 10.0)),
        tpot_s=random.choice((0.03, 0.1, 0.5)),
        most_replicas=random.choice((1, 2, 64)),
        hollow=random.random() < 0.5,
    )


def some_load(random: Random) -> ModelLoad:
    arrivals_s = random.choice((0.002, 0.05, 0.5, 3.0, 12.0)) * random.uniform(0.5, 1.5)
    return ModelLoad(arrivals_s, random.randint(20, 1500), random.randint(5, 500))


def some_placement(random: Random, facts: PlacementFacts) -> DevicePlacement:
    """Random placement of `facts`: replicas in random states, each put only where it fits."""
    placement = NOWHERE
    for _ in range(random.randint(0, 2 * len(facts.models))):
        model, device = random.choice(facts.models), random.choice(facts.devices)
        place = ReplicaPlace(model.name, device.name, random.choice(list(Stand)))
        if device.name not in placement.of(model.name) and fits(facts, placement, place):
            placement = placement.put(*place)
    return placement


def overfull(facts: PlacementFacts, placement: DevicePlacement) -> list[str]:
    """Names of devices and machines whose memory a placement exceeds."""
    devices = (d for d in facts.devices if device_bytes(facts, placement, d.name) > d.nbytes)
    hosts = (m for m in facts.machines if host_bytes(facts, placement, m.name) > m.nbytes)
    return [*(d.name for d in devices), *(m.name for m in hosts)]


def noisy(random: Random, facts: PlacementFacts, part: float) -> PlacementFacts:
    """Copy of `facts` in which each load differs by a random factor between 1 - `part` and 1 +
    `part`.
    """

    def change() -> float:
        return 1 + random.uniform(-part, part)

    windows = tuple(
        replace(
            window,
            loads={
                name: ModelLoad(
                    load.arrivals_s * change(),
                    load.tokens_in * change(),
                    load.tokens_out * change(),
                )
                for name, load in window.loads.items()
            },
        )
        for window in facts.windows
    )
    return replace(facts, windows=windows)


class StepBooks:
    """Bytes that each process holds, and routes to processes, while the steps of a placement move
    are done one by one. The test counts them itself, independently of the placer.
    """

    def __init__(self, facts: PlacementFacts, present: DevicePlacement) -> None:
        self.facts = facts
        self.held = {
            (p.model, p.device): self._bytes(p.model, asleep=p.stand is Stand.ASLEEP)
            for p in present.places
        }
        """Bytes of device memory that each process holds, by model and device."""
        self.routed = set(self.held)
        self.brought = set[tuple[str, str]]()
        self._check()

    def _bytes(self, model: str, *, asleep: bool) -> int:
        one = self.facts.model[model]
        return one.asleep if asleep else one.least

    def do(self, steps: Iterable[MoveStep]) -> None:
        for step in steps:
            self.step(step)
            self._check()

    def step(self, step: MoveStep) -> None:
        key = (step.model, step.device)
        match step.verb:
            case MoveVerb.BRING:
                assert self.facts.lacks_weights(*key), f"{step} is there"
                self.brought.add(key)
            case MoveVerb.START:
                assert key not in self.held, f"{step} has a process"
                assert key in self.brought or not self.facts.lacks_weights(*key), f"{step} of what"
                hollow = self.facts.model[step.model].hollow
                self.held[key] = self.facts.model[step.model].start
                self._check()  # while it starts, and once it has
                self.held[key] = self._bytes(step.model, asleep=hollow)
            case MoveVerb.WAKE:
                assert key in self.held, f"{step} has no process"
                self.held[key] = self._bytes(step.model, asleep=False)
            case MoveVerb.ROUTE:
                assert key in self.held, f"{step} has no process"
                self.routed.add(key)
            case MoveVerb.DRAIN:
                self.routed.remove(key)
            case MoveVerb.SLEEP:
                assert key in self.held, f"{step} has no process"
                self.held[key] = self._bytes(step.model, asleep=True)
            case MoveVerb.STOP:
                assert key not in self.routed, f"{step} before its drain"
                del self.held[key]

    def _check(self) -> None:
        for device in self.facts.devices:
            used = sum(n for (_, where), n in self.held.items() if where == device.name)
            assert used <= device.nbytes, f"{device.name}: {used} of {device.nbytes}"
        for machine in self.facts.machines:
            names = [
                model
                for model, where in self.held
                if self.facts.device[where].machine == machine.name
            ]
            masters = set(names) if machine.shared_masters else names
            used = sum(self.facts.model[name].parameters for name in masters)
            assert used <= machine.nbytes, f"{machine.name}: {used} of {machine.nbytes}"
