"""From an experiment to a world that is ready to run."""

from __future__ import annotations

from functools import cache

from mirage.config import Policy
from mirage.decider import Decider
from mirage.layers import even, nested
from mirage.share import base
from mirage.simulate import workload
from mirage.simulate.engine import Engine, Limits
from mirage.simulate.experiment import Setup
from mirage.simulate.holding import Holding
from mirage.simulate.policies import Variant
from mirage.simulate.roofline import PS, Roofline
from mirage.simulate.swap import SwapEngine
from mirage.simulate.world import World
from scheduler.tenants import Tenant


def world(setup: Setup, variant: Variant, seed: int, *, skipping: bool = True) -> World:
    """Engines with their requests, and the deciders of their memory."""
    sharing = setup.experiment.sharing
    crowded = sharing.mode == "spatial" and not sharing.isolated
    made = World(skipping=skipping, crowded=crowded)
    arrivals = workload.requests(setup, seed)
    walls = [t.name for t in setup.experiment.tenants] if sharing.isolated else [None]
    for wall in walls:
        config = setup.config(variant, only=wall)
        engines = [
            _engine(setup, variant, Tenant.of(t), config.device.memory, arrivals[t.name], made)
            for t in config.tenants
        ]
        made.add(Decider.of(config), engines)
    return made


def _engine(setup, variant, tenant, device_bytes, arrivals, made) -> Engine:  # type: ignore[no-untyped-def]
    experiment, hardware, shape = setup.experiment, setup.hardware, setup.shapes[tenant.name]
    share = next(t.share for t in experiment.tenants if t.name == tenant.name)
    fraction = share / setup.total_share if experiment.sharing.isolated else 1.0
    roofline = Roofline(setup.models[tenant.name], hardware, fraction, experiment.layer_parts)
    load_ps = round(shape.layer_bytes / (hardware.link_gb_s.value * 1e9 * fraction) * PS)
    remap = variant.settings(experiment.remap)
    start = base(tenant, shape, device_bytes)
    own = start.kv_extents * shape.extent_blocks - 1
    growth_only = variant.policy is Policy.MIRAGE and remap.serve == "growth"
    limits = Limits(
        block_tokens=experiment.limits.block_tokens,
        max_num_seqs=experiment.limits.max_num_seqs,
        max_num_batched_tokens=experiment.limits.max_num_batched_tokens,
        elastic=variant.policy is not Policy.STATIC,
        temporal=experiment.sharing.mode == "temporal",
        drain=experiment.sharing.drain,
        headroom_extents=remap.headroom_extents,
        lookahead_steps=remap.lookahead_steps,
        growth_only=growth_only,
        own_blocks=own,
        report_ps=round(experiment.report_s * PS),
        apply_ps=round(hardware.apply_ms.value * 1e-3 * PS),
    )
    holding = Holding(shape, start, _copies(experiment.layer_sets, shape.layers))
    if variant.swaps:
        mixed = hardware.link_mixed_gb_s.value * 1e9 * fraction
        token_ps = round(setup.models[tenant.name].kv_token_bytes / mixed * PS)
        return SwapEngine(tenant.name, holding, roofline, load_ps, limits, arrivals, made, token_ps)
    return Engine(tenant.name, holding, roofline, load_ps, limits, arrivals, made)


def _copies(sets: str, n: int):  # type: ignore[no-untyped-def]
    """Layers to load when the streamed set changes."""
    order = nested(n)

    @cache
    def streamed(alpha: int, beta: int) -> frozenset[int]:
        m = alpha + beta if alpha else 0
        return frozenset(order[:m] if sets == "nested" else even(n, m))

    def copies(before: tuple[int, int], after: tuple[int, int]) -> int:
        return len(streamed(*before) - streamed(*after))

    return copies
