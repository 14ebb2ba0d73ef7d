"""Tenants as tools of other servers list them: what is loaded, and how large it is.

The supervisor tells it, the router answers by it in the forms of Ollama and llama-swap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from mirage.serve.registry import Registry

ROUTE = "/mirage/loaded"
"""Route of the supervisor's socket, which its router alone asks."""


class LoadedTenant(msgspec.Struct, frozen=True):
    """A tenant that has an engine, or had one. Bytes and seconds."""

    parameters_bytes: int = 0
    """Bytes of its layers, and of what never moves."""
    held_bytes: int = 0
    """Device memory that it holds."""
    away_bytes: int = 0
    """Bytes of layers that were given away, which host memory has."""
    yields_s: float | None = None
    """Seconds until its own times put it to sleep or stop it; None if they do not."""


NOTHING = LoadedTenant()


def loaded(registry: Registry) -> dict[str, LoadedTenant]:
    """All tenants that have told their shape, by name."""
    attended = registry.sources.attended()
    return {
        name: _of(registry, name, attended.yields_s(name) if attended is not None else None)
        for name in registry.backends.keys() & registry.shapes.keys()
    }


def encoded(told: Mapping[str, LoadedTenant]) -> bytes:
    return msgspec.json.encode(told)


def decoded(text: bytes) -> dict[str, LoadedTenant]:
    """Raises `ValueError`."""
    return msgspec.json.decode(text, type=dict[str, LoadedTenant])


def summed(told: Iterable[Mapping[str, LoadedTenant]]) -> dict[str, LoadedTenant]:
    """Tenants of several devices: replicas of one count as one."""
    found: dict[str, LoadedTenant] = {}
    for device in told:
        for name, one in device.items():
            found[name] = _both(found[name], one) if name in found else one
    return found


def _both(one: LoadedTenant, other: LoadedTenant) -> LoadedTenant:
    """The replica that is the last to yield says when both have."""
    lasts = one.yields_s is None or other.yields_s is None
    return LoadedTenant(
        max(one.parameters_bytes, other.parameters_bytes),
        one.held_bytes + other.held_bytes,
        one.away_bytes + other.away_bytes,
        None if lasts else max(one.yields_s or 0.0, other.yields_s or 0.0),
    )


def _of(registry: Registry, name: str, yields_s: float | None) -> LoadedTenant:
    shape, report = registry.shapes[name], registry.reports.get(name)
    parameters = shape.fixed_bytes + shape.layers * shape.layer_bytes
    if report is None:
        return LoadedTenant(parameters)
    away = report.layers_remapped * shape.layer_bytes
    return LoadedTenant(parameters, report.held_bytes, away, yields_s)
