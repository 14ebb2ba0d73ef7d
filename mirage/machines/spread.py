"""Devices of each model where some of its own are lost, and the steps there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class SpreadModel(NamedTuple):
    """One model."""

    name: str
    homes: tuple[str, ...]
    """Devices that it was placed on."""
    percent: float
    """Share of a device."""
    pressure: float = 0.0
    """Requests that run and wait, as they were seen last."""


Spread = dict[str, tuple[str, ...]]
"""Models by their devices."""


def spread(
    models: Sequence[SpreadModel], there: Collection[str], before: Mapping[str, Sequence[str]]
) -> Spread:
    """Models of each device that is `there`.

    A model is on its homes. One without any goes to the device with the most room, those with the
    most pressure first, of equals those with the largest share. It stays where it was `before`.
    Without a device nothing is anywhere.
    """
    found: dict[str, list[str]] = {device: [] for device in there}
    taken = dict.fromkeys(there, 0.0)

    def put(model: SpreadModel, device: str) -> None:
        found[device].append(model.name)
        taken[device] += model.percent

    strays = []
    for model in models:
        homes = [device for device in model.homes if device in found]
        for device in homes:
            put(model, device)
        if not homes:
            strays.append(model)
    for model in sorted(strays, key=lambda one: (-one.pressure, -one.percent, one.name)):
        stays = [device for device in found if model.name in before.get(device, ())]
        if found:
            put(model, min(stays or found, key=lambda device: (taken[device], device)))
    return {device: tuple(names) for device, names in found.items()}


def on_the_way(
    wanted: Mapping[str, Sequence[str]], told: Mapping[str, Mapping[str, bool]]
) -> Spread:
    """Models that each device of `told` shall have now: first more, then less.

    `told` says of each model of a device whether it can serve. One that is wanted elsewhere goes
    once all devices that want it can serve it.
    """
    at = {
        name: [d for d in wanted if name in wanted[d]]
        for names in wanted.values()
        for name in names
    }
    return {
        device: tuple(wanted.get(device, ()))
        + tuple(
            name
            for name in has
            if name not in wanted.get(device, ())
            and not all(told.get(other, {}).get(name, False) for other in at.get(name, ()))
        )
        for device, has in told.items()
    }
