"""Tenants that are loaded, and their sizes, for the lists that clients of other servers read.

The supervisor sends the data; the router answers from it in the forms of Ollama and llama-swap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from mirage.serve.registry.registry import Registry

ROUTE = "/mirage/loaded"
"""Route at the supervisor's inner socket, which only its router asks."""


class LoadedTenant(msgspec.Struct, frozen=True):
    """Sizes in bytes of a tenant that has or had an engine, and seconds until it yields."""

    parameters_bytes: int = 0
    """Bytes of its layers and of the parameters that never move."""
    held_bytes: int = 0
    """Device memory that its engine holds."""
    away_bytes: int = 0
    """Bytes of layers whose device memory was given away."""
    yields_s: float | None = None
    """Seconds until `keep_alive` or `stop_after` puts it to sleep or stops it; None if they do
    not.
    """


NOTHING = LoadedTenant()


def loaded(registry: Registry) -> dict[str, LoadedTenant]:
    """Sizes of all tenants whose engines have told their shapes, by name."""
    attended = registry.sources.attended()
    return {
        name: _of(registry, name, attended.yields_s(name) if attended is not None else None)
        for name in registry.backends.keys() & registry.shapes.keys()
    }


def encoded(told: Mapping[str, LoadedTenant]) -> bytes:
    return msgspec.json.encode(told)


def decoded(text: bytes) -> dict[str, LoadedTenant]:
    """Sizes from the supervisor's JSON. Raises `ValueError` for any other text."""
    return msgspec.json.decode(text, type=dict[str, LoadedTenant])


def summed(told: Iterable[Mapping[str, LoadedTenant]]) -> dict[str, LoadedTenant]:
    """Sizes of the tenants of several devices; replicas are joined to one entry."""
    found: dict[str, LoadedTenant] = {}
    for device in told:
        for name, one in device.items():
            found[name] = _both(found[name], one) if name in found else one
    return found


def _both(one: LoadedTenant, other: LoadedTenant) -> LoadedTenant:
    """Entry of two replicas together. The parameters are those of one replica, the larger number;
    the other sizes are sums. The time is that of the replica that sleeps or stops last.
    """
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
