"""A decision in words: the devices of each model, the reason, and the steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mirage.control.placement.books import device_bytes, host_bytes
from mirage.control.placement.deciding import PlacementDecision
from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.placed import DevicePlacement, Stand
from mirage.control.placement.pressure import Pressures
from mirage.control.placement.steps import MoveStep
from mirage.units import size


def placement_lines(facts: PlacementFacts, decision: PlacementDecision) -> list[str]:
    """Return the lines of ``mirage check``: the placement by devices, memory, and the reason."""
    placement = decision.placement
    return [
        _head(facts, decision),
        *_devices(facts, placement),
        *_hosts(facts, placement),
        *_absent(facts, placement),
        f"why: {decision.why}",
    ]


def step_lines(steps: Iterable[MoveStep]) -> list[str]:
    """Return a numbered line for each step."""
    return [
        f"{number}. {step.verb} {step.model} on {step.device}: {step.why}"
        for number, step in enumerate(steps, 1)
    ]


def _head(facts: PlacementFacts, decision: PlacementDecision) -> str:
    return (
        f"placement of {len(facts.models)} models on {len(facts.devices)} devices, judged in "
        f"{_count(len(facts.windows), 'window')} by {_count(decision.evaluations, 'evaluation')}:"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _devices(facts: PlacementFacts, placement: DevicePlacement) -> Iterator[str]:
    pressures = Pressures(facts)
    for device in facts.devices:
        there = placement.on(device.name)
        named = ", ".join(
            name if stand is Stand.AWAKE else f"{name} (asleep)" for name, stand in there.items()
        )
        least = device_bytes(facts, placement, device.name)
        yield (
            f"  {device.name}: {named or 'nothing'}; least grants {size(least)} of "
            f"{size(device.nbytes)}, pressure {pressures.of(placement, device.name):.2f}"
        )


def _hosts(facts: PlacementFacts, placement: DevicePlacement) -> Iterator[str]:
    for machine in facts.machines:
        nbytes = host_bytes(facts, placement, machine.name)
        yield f"  host memory of {machine.name}: masters {size(nbytes)} of {size(machine.nbytes)}"


def _absent(facts: PlacementFacts, placement: DevicePlacement) -> Iterator[str]:
    for model in facts.models:
        if not placement.of(model.name):
            yield f"  {model.name} is on disk: {_lacks(facts, placement, model.name)}"


def _lacks(facts: PlacementFacts, placement: DevicePlacement, name: str) -> str:
    """Return the reason why a model is on disk: the bytes that it lacks even where most are
    free."""
    model = facts.model[name]
    free = max(d.nbytes - device_bytes(facts, placement, d.name) for d in facts.devices)
    host = max(m.nbytes - host_bytes(facts, placement, m.name) for m in facts.machines)
    if model.parameters > host:
        return f"its master takes {size(model.parameters)}, and host memory has {size(host)} free"
    if model.start > free:
        return f"its start takes {size(model.start)}, and no device has more than {size(free)} free"
    return "the judge found no place that is worth it"
