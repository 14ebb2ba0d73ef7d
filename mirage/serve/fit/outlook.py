"""Notes on configurations in which moving layers gains little, before anything starts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mirage.config import Config, Policy
from mirage.control.hiding import largest_hidden
from mirage.control.lending import MOST_PART, worth_lending, worth_sparing
from mirage.control.rules import Rules
from mirage.control.targets import most_slots
from mirage.serve.fit.fit import Fit

LITTLE = 0.1
"""Fraction of all KV memory. If lent layers could add less than this, policy `mirage` gains too
little.
"""


class Speeds(NamedTuple):
    """Speeds of a machine in bytes a second; None if not known before engines run."""

    link: float | None = None
    """Speed of copies from host to device."""
    memory: float | None = None
    """Speed at which decode reads parameters."""


def outlook(config: Config, fits: Mapping[str, Fit], speeds: Speeds) -> list[str]:
    """Lines that begin with ``note:``; none if much may be gained, or nothing is known."""
    if config.policy is not Policy.MIRAGE:
        return []
    return _never(config, fits) + _little(config, fits, speeds)


def _never(config: Config, fits: Mapping[str, Fit]) -> list[str]:
    """Notes on tenants that could give layers, but never do with this configuration."""
    slots = most_slots(Rules.served(config))
    notes = []
    for name, fit in fits.items():
        tenant, percent = config.tenant(name), config.max_percent(config.tenant(name))
        if fit.stays is not None or not percent:
            continue
        begin = f"tenant {name!r} never gives a layer: "
        if not fit.movable_layers:
            notes.append(_note(f"{begin}max_percent {percent:g} of its {fit.layers} is not one"))
        elif tenant.floor_layers + slots >= fit.layers:
            notes.append(_note(begin + _kept(tenant.floor_layers, slots, fit.layers)))
    return notes


def _kept(floor: int, slots: int, layers: int) -> str:
    most = layers - slots - 1
    advice = f": lower floor_layers to {most} or less" if most >= 1 else ", whatever floor_layers"
    return f"of its {layers}, {floor} stay (floor_layers) and {slots} are for streaming{advice}"


def _little(config: Config, fits: Mapping[str, Fit], speeds: Speeds) -> list[str]:
    pool = config.device.memory - sum(fit.parameter_bytes for fit in fits.values())
    movable = sum(fit.movable_layers * fit.layer_bytes for fit in fits.values())
    if movable < LITTLE * pool:
        return [
            _note("all layers that can move are less than a tenth of the KV memory: use pooled")
        ]
    if speeds.link is None:
        return []
    if config.sharing.mode == "temporal":
        return _in_turns(config, fits, pool, speeds.link)
    if speeds.memory is None:
        return []
    return _at_once(config, fits, speeds.link, speeds.memory)


def spares_preemptions(
    config: Config, fits: Mapping[str, Fit], pool: int, turn_bytes: float
) -> bool:
    """True if layers may be lent in turns also where larger batches do not pay for them, while
    many requests are preempted (`worth_sparing`). `pool`: KV memory of the device in bytes;
    `turn_bytes`: bytes that the link loads in a turn."""
    if config.sharing.drains or config.host_tier is not None:
        return False
    largest = max(fit.layer_bytes for fit in fits.values())
    return worth_sparing(pool, turn_bytes, MOST_PART, most=pool, recomputed_part=1.0) >= largest


def _in_turns(config: Config, fits: Mapping[str, Fit], pool: int, link: float) -> list[str]:
    turn_s = config.sharing.turn_s
    if worth_lending(pool, link * turn_s) >= LITTLE * pool:
        return []
    longer = turn_s
    while worth_lending(pool, link * longer) < LITTLE * pool:
        longer *= 1.05
    spares = spares_preemptions(config, fits, pool, link * turn_s)
    return [
        _note(
            f"turns of {turn_s:g} s are too short for layers to pay"
            f"{', unless many requests are preempted' if spares else ''}: the link loads "
            f"{link * turn_s / 1e9:.3g} GB in one, and KV memory without layers is "
            f"{pool / 1e9:.3g} GB. Turns from {longer:.2g} s would pay"
            f"{'' if spares else ', or use pooled'}"
        )
    ]


def _at_once(config: Config, fits: Mapping[str, Fit], link: float, memory: float) -> list[str]:
    if any(_hidden(fit, memory / link) for fit in fits.values()):
        return []
    return [
        _note(
            f"over {link / 1e9:.3g} GB/s no layer hides behind the decode of one request: "
            f"models lend layers only after up to {config.remap.rest_s:g} s without work "
            "(remap.rest_s), or behind large batches"
        )
    ]


def _hidden(fit: Fit, ratio: float) -> int:
    """Number of layers that can be given away without making a step longer.

    Loading a layer takes `ratio` times as long as reading it in a step.
    """
    return min(fit.movable_layers, largest_hidden(fit.layers, ratio, 1.0, (1, 2), fit.layers)[0])


def _note(text: str) -> str:
    return f"note: {text}"
