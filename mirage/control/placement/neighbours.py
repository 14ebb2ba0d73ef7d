"""Placements that differ from one by a single change: the candidates of a local search."""

from __future__ import annotations

from collections.abc import Iterator

from mirage.control.placement.judging import Sentence
from mirage.control.placement.placed import DevicePlacement, Stand, parts
from mirage.control.placement.pressure import Pressures


def neighbours(
    pressures: Pressures, base: DevicePlacement, sentence: Sentence
) -> Iterator[DevicePlacement]:
    """Yield `base` with one change each: wakes first; then replicas opened or closed, moves, swaps
    and sleeps, device by device, beginning with the one that loses most requests.

    `sentence` is the verdict on `base`. Of devices that lose equally many requests, the one under
    the greatest pressure comes first. Placements that do not fit are among them: `path_towards`
    reaches a part of such a one.
    """
    facts = pressures.facts
    at = {each.name: pressures.of(base, each.name) for each in facts.devices}
    lost = dict.fromkeys(at, 0.0)
    for model, verdict in sentence.models.items():
        for device, part in parts(facts, base, model).items():
            lost[device] += part * (verdict.asked - verdict.within)
    falling = sorted(at, key=lambda name: (-round(lost[name], 6), -at[name], name))
    rising = falling[::-1]
    yield from _wakes(pressures, base, rising)
    for here in falling:
        there = [name for name in rising if name != here]
        models = sorted(base.on(here), key=lambda m: (-pressures.weight(m), m))
        awake = [m for m in models if base.on(here)[m] is Stand.AWAKE]
        asked = [m for m in awake if facts.asked(m) > 0]
        for model in asked:
            free = [name for name in there if name not in base.of(model)]
            if len(base.awake(model)) < facts.model[model].most_replicas:
                yield from (base.put(model, name) for name in free)
            yield from (base.out(model, here).put(model, name) for name in free)
        for model in awake:
            if len(base.of(model)) > 1:
                yield base.out(model, here)
            if facts.asked(model) == 0:
                yield base.put(model, here, Stand.ASLEEP)
        for model in asked:
            for name in there:
                yield from _swaps(base, model, here, name)
        for model in awake:
            yield base.put(model, here, Stand.ASLEEP)


def _wakes(
    pressures: Pressures, base: DevicePlacement, rising: list[str]
) -> Iterator[DevicePlacement]:
    """Yield, for each device, the placement in which a model that is requested and awake nowhere is
    awake on it, with a process there before or not."""
    for model in pressures.facts.models:
        if pressures.facts.asked(model.name) > 0 and not base.awake(model.name):
            yield from (base.put(model.name, name) for name in rising)


def _swaps(base: DevicePlacement, model: str, here: str, there: str) -> Iterator[DevicePlacement]:
    if model in base.on(there):
        return
    for other, stand in base.on(there).items():
        if stand is Stand.AWAKE and other not in base.on(here):
            left = base.out(model, here).out(other, there)
            yield left.put(model, there).put(other, here)
