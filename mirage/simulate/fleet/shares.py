"""Shares of one device for tenants whose share an experiment leaves out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor

from mirage.config import ConfigError
from mirage.geometry import footprint
from mirage.protocol import ModelShape
from mirage.simulate.experiment import AUTO_SHARE, SimulatedTenant

FINE = 1e6
"""Number of parts of one per cent: shares are rounded down to whole parts."""


def filled(
    tenants: Sequence[SimulatedTenant],
    shapes: Mapping[str, ModelShape],
    device_bytes: int,
    pressure: Mapping[str, float],
) -> list[SimulatedTenant]:
    """Tenants of one device, each with a share.

    A share that was left out is the least with all layers in place, plus a part of the free rest of
    the device in proportion to the tenant's `pressure`, a weight. Raises `ConfigError` if the
    tenants do not fit the device.
    """
    left_out = [tenant.name for tenant in tenants if tenant.share == AUTO_SHARE]
    least = {name: _least(shapes[name], device_bytes) for name in left_out}
    free = 100 - sum(tenant.share for tenant in tenants) - sum(least.values())
    if left_out and free < 0:
        raise ConfigError(
            f"{len(tenants)} models need {100 - free:.1f} % of it: place fewer of them there"
        )
    total = sum(pressure[name] for name in left_out)
    shares = {
        name: least[name] + floor(free * pressure[name] / total * FINE) / FINE for name in left_out
    }
    return [
        t.model_copy(update={"share": shares[t.name]}) if t.name in shares else t for t in tenants
    ]


def _least(shape: ModelShape, device_bytes: int) -> float:
    return ceil(footprint(shape, 0, shape.min_extents) * 100 * FINE / device_bytes) / FINE
