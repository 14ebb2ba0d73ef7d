"""Facts for a simulation of two configurations: the present one, and one that may be applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from mirage.config import Config
from mirage.control.roster.roster import Roster
from mirage.serve.apply.difference import ConfigDifference
from mirage.serve.fit.fit import Fit
from mirage.serve.launch.preflight import speeds
from mirage.serve.registry.registry import Registry
from mirage.serve.whatif.forms import WhatIfFacts
from mirage.serve.whatif.past import PastChunk, preempted_in
from mirage.serve.whatif.scenes import KEYS, UNKNOWN, KnownEngine, scene

NOT_SIMULATED = ("limits", "defaults", "max_waiting", "max_wait_s")
"""Keys of a tenant that refuse or change requests before an engine gets them."""


class ServedConfig(NamedTuple):
    """Configuration with numbers for ``auto``, and the memory of its tenants at their start
    (`Fit`)."""

    config: Config
    fits: Mapping[str, Fit]


def known_engines(registry: Registry, roster: Roster) -> dict[str, KnownEngine]:
    """Facts known about each tenant's engine now, by tenant."""
    return {
        name: KnownEngine(
            registry.shapes.get(name),
            registry.measured(name),
            roster.members[name].times if name in roster.members else None,
        )
        for name in registry.backends
    }


def what_if(
    now: ServedConfig,
    after: ServedConfig,
    change: ConfigDifference,
    known: Mapping[str, KnownEngine],
    past: Iterable[PastChunk],
) -> WhatIfFacts:
    """Facts for both simulations. `past` are requests of the last hour.

    Raises `ConfigError` if a profile of the device cannot be read.
    """
    link = speeds(now.config.device).link
    then = {name: _then(one, name, change) for name, one in known.items()}
    return WhatIfFacts(
        now=scene(now.config, now.fits, known, link),
        after=scene(after.config, after.fits, then, link),
        preempted=preempted_in(past),
        notes=tuple(_notes(after.config, change)),
    )


def _then(one: KnownEngine, name: str, change: ConfigDifference) -> KnownEngine:
    """Facts that still hold of an engine after the change is made."""
    if name not in change.needs_engines:
        return one
    if "model" in _restarts(name, change):
        return UNKNOWN
    return one._replace(shape=None, times=None)


def _restarts(name: str, change: ConfigDifference) -> tuple[str, ...]:
    return next((one.restart for one in change.changed if one.name == name), ())


def _notes(config: Config, change: ConfigDifference) -> Iterator[str]:
    """Sentences about effects that the simulation leaves out."""
    for name in change.added:
        yield f"{name} is new: its requests are not known, so that it is simulated without any"
    for one in change.changed:
        if others := [key for key in one.restart if key not in KEYS]:
            yield f"{one.name}: {', '.join(others)} may change its steps, which are taken as now"
        if left := [key for key in one.at_once if key.split(".")[0] in NOT_SIMULATED]:
            yield f"{one.name}: {', '.join(left)} is not simulated"
    if config.host_tier is not None:
        yield "memory below the device (tiers) is not simulated"
