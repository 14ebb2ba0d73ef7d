"""Simulated world of engines, made from a scene (a configuration and facts) and past requests.
Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from mirage.config import Config, Policy, TenantSection
from mirage.control.arbiter import Arbiter
from mirage.control.placement.placed import Stand
from mirage.control.roster.roster import Roster
from mirage.control.rules import Rules
from mirage.control.targets import base, entitled
from mirage.facts import KVGroup
from mirage.serve.roster.declared import rules_of, spec_of
from mirage.serve.whatif.forms import PastRow, Scene, SceneSteps
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.build import copies_of
from mirage.simulate.engine import Engine
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.lanes import Lane
from mirage.simulate.limits import StepLimits
from mirage.simulate.roofline import LAYER_SETS, PS, BoundedSteps, CostBound
from mirage.simulate.rostered import RosteredDomain, begin, begin_placed
from mirage.simulate.world import World
from mirage.units import ceil_div
from mirage.workload.dealing import clip

Arrivals = Mapping[str, Sequence[SimulatedRequest]]
REPORT_S = 0.1
"""Seconds between two reports of a busy engine. Real engines report more often, with the same
effect.
"""
IDLE = SceneSteps(((PS // 1000, 0, 0, 0, 0),), (0, 0, 0, 0, 0), "nobody asks it")
"""Step times of an engine that gets no requests."""


def arrivals(scene: Scene, past: Iterable[PastRow]) -> dict[str, list[SimulatedRequest]]:
    """Past requests of the scene's tenants, in order of arrival, by tenant. Time 0 is the first
    arrival in `past`; prompt and output together are cut to the tenant's `max_model_len`, as `clip`
    cuts them.
    """
    rows = sorted(past, key=lambda row: row.t)
    begin_t = rows[0].t if rows else 0.0
    longest = {one.name: one.max_model_len for one in config_of(scene).tenants}
    found: dict[str, list[SimulatedRequest]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row.tenant in longest:
            prompt, output = clip(row.prompt, max(1, row.output), longest[row.tenant])
            at = round((row.t - begin_t) * PS)
            found[row.tenant].append(SimulatedRequest(number, at, prompt, output))
    return found


def config_of(scene: Scene) -> Config:
    """Configuration by which memory and turns are decided."""
    return Config.model_validate(scene.config)


def world(scene: Scene, asked: Arrivals, stands: Mapping[str, Stand] | None = None) -> World:
    """Simulated engines with the requests that each is `asked`, and the arbiter of their memory.

    `stands` tells which tenants are awake or asleep at first, if tenants may sleep and wake; if it
    is None, those with most requests are awake. Raises `DoesNotFitError` for a share that does not
    hold its model, and, if tenants may sleep and wake, `NeverServedError` for one that has no room
    beside the pinned ones.
    """
    config = config_of(scene)
    co_running = scene.shares_compute and config.sharing.mode == "spatial"
    made = World(co_running=co_running, message_ps=_ps(scene.message_s))
    engines = [_engine(scene, config, tenant, asked, made) for tenant in config.tenants]
    arbiter = Arbiter.of(config)
    if not scene.comes_and_goes:
        made.add(arbiter, engines)
        return made
    roster = Roster(config.device.memory, rules_of(config))
    for tenant in config.tenants:
        own, times = scene.tenants[tenant.name].own, scene.tenants[tenant.name].times
        spec = replace(spec_of(tenant), keep_weights="host", queued=1 << 40, wait_s=inf)
        roster.applied(spec, own, times, 0.0)
    if stands is None:
        names = [tenant.name for tenant in config.tenants]
        begin(roster, sorted(names, key=lambda name: -len(asked.get(name, ()))))
    else:
        begin_placed(roster, stands)
    link = Lane(_link(scene))
    domain = partial(RosteredDomain, roster=roster, link=link, later=made.later)
    made.add(arbiter, engines, domain)
    return made


def _engine(
    scene: Scene, config: Config, tenant: TenantSection, asked: Arrivals, made: World
) -> Engine:
    known = scene.tenants[tenant.name]
    shape, steps = known.shape, known.steps or IDLE
    bounds = BoundedSteps(
        shape.layers, (CostBound(*one) for one in steps.compute), CostBound(*steps.overhead)
    )
    first = base(entitled(tenant), shape, config.device.memory)
    return Engine(
        tenant.name,
        SimulatedMemory(shape, first, copies_of(LAYER_SETS["nested"], shape.layers)),
        bounds,
        _ps(known.load_s),
        _limits(scene, config, tenant),
        iter(asked.get(tenant.name, ())),
        made,
    )


def _limits(scene: Scene, config: Config, tenant: TenantSection) -> StepLimits:
    shape, rules = scene.tenants[tenant.name].shape, Rules.served(config)
    most = ceil_div(tenant.max_model_len, shape.block_tokens)
    return StepLimits(
        group=KVGroup("full_attention", shape.layers, shape.block_tokens, most),
        max_num_seqs=tenant.max_num_seqs,
        max_num_batched_tokens=tenant.max_num_batched_tokens,
        elastic=config.policy is not Policy.STATIC,
        temporal=config.sharing.mode == "temporal",
        hold_s=config.sharing.patience_s,
        headroom_extents=rules.headroom_extents,
        lookahead_steps=rules.lookahead_steps,
        kept=rules.kept(config.policy),
        report_ps=_ps(REPORT_S),
        apply_ps=_ps(scene.apply_s),
    )


def _link(scene: Scene) -> float:
    """Bytes a second of the link: the highest rate at which any tenant's layers load."""
    return max(one.shape.layer_bytes / one.load_s for one in scene.tenants.values())


def _ps(seconds: float) -> int:
    return round(seconds * PS)
