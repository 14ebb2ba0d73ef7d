"""Line of `mirage check` about host memory for copies of weights. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mirage.config import Config
from mirage.serve.fit.fit import Fit
from mirage.units import size


def master_lines(config: Config, fits: Mapping[str, Fit], idle_bytes: int) -> list[str]:
    """A line about host memory for weights; none if no layers move.

    At most `idle_bytes` of them stay while no engine uses them. Copies that outlive engines have
    all parameters, and tenants of the same folder and arguments share one. Every other tenant
    has a copy of its layers.
    """
    kept: dict[object, int] = {}
    own = 0
    for name, fit in fits.items():
        tenant = config.tenant(name)
        if not fit.movable_layers:
            continue
        if config.keeps_weights(tenant):
            kept[tenant.model, str(tenant.engine_args)] = fit.parameter_bytes
        else:
            own += fit.layers * fit.layer_bytes
    if not kept and not own:
        return []
    stays = sum(kept.values())
    words = f"host memory: {size(stays + own)} of weights, from which layers stream"
    if kept:
        words += f"; up to {size(min(stays, idle_bytes))} stay without an engine"
    return [words]
