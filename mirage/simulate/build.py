"""Building of a world that is ready to run, from an experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from math import inf
from typing import Any

from mirage.config import Policy
from mirage.config import TenantSection as Served
from mirage.control.arbiter import Arbiter
from mirage.control.controller import Controller
from mirage.control.draining import Draining
from mirage.control.placement.placed import Stand
from mirage.control.roster.roster import Roster
from mirage.control.roster.specs import TenantSpec
from mirage.control.targets import base, entitled
from mirage.facts import KVGroup
from mirage.simulate import workload
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.costs import StepCosts
from mirage.simulate.engine import Engine, MakeCosts
from mirage.simulate.experiment import Setup
from mirage.simulate.expert_costs import ExpertCosts
from mirage.simulate.hierarchy import Hierarchy
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.lanes import Lane
from mirage.simulate.limits import StepLimits
from mirage.simulate.loads import TierLoads
from mirage.simulate.reuse import PrefixCache
from mirage.simulate.roofline import LAYER_SETS, PS, Roofline, Sets
from mirage.simulate.rostered import RosteredDomain, begin, begin_placed
from mirage.simulate.routing import Routers
from mirage.simulate.savings import Savings
from mirage.simulate.tally import Tally
from mirage.simulate.tier_settings import SimulatedTiers
from mirage.simulate.variants import Variant
from mirage.simulate.world import World
from mirage.tiers.contract import Medium, Member
from mirage.tiers.ledger import Due
from mirage.tiers.policies import POLICIES
from mirage.units import ceil_div
from scheduler.sharing import make_sharing

UNBOUNDED: Mapping[str, Any] = {"queued": 1 << 40, "wait_s": inf}
"""Limits of the number of waiting requests and of their wait, so large that none is refused: a
simulation judges requests by their latencies.
"""
Streamed = tuple[int, int]
"""Number of layers remapped, and number of slots."""


def world(
    setup: Setup,
    variant: Variant,
    seed: int,
    *,
    skipping: bool = True,
    arrivals: Mapping[str, Iterator[SimulatedRequest]] | None = None,
    max_num_seqs: Mapping[str, int] | None = None,
    start: int = 0,
    stands: Mapping[str, Stand | None] | None = None,
) -> World:
    """A world with the engines, their requests, and the code that decides about their memory.

    `skipping` simulates many equal steps in one go. `arrivals` are the requests of each tenant,
    instead of those that the experiment draws. `max_num_seqs` is the most requests in one step, by
    tenant, instead of the experiment's limit. Time begins at `start` picoseconds. With a roster,
    `stands` has the tenants that are or may come to the device, and the state in which each begins,
    where None is stopped with the weights on disk; without `stands` the roster chooses the states.
    """
    sharing = setup.experiment.sharing
    co_running = sharing.mode == "spatial" and not sharing.isolated
    message_ps = _milliseconds(setup.hardware.message_ms.value)
    made = World(skipping=skipping, co_running=co_running, message_ps=message_ps, start=start)
    arrivals = workload.requests(setup, seed) if arrivals is None else arrivals
    tiers = _tiers(setup, variant)
    hierarchy = Hierarchy(setup.speeds, POLICIES[tiers.policy]) if tiers else None
    walls = [t.name for t in setup.experiment.tenants] if sharing.isolated else [None]
    if setup.experiment.roster is not None:
        _add_rostered(made, setup, variant, seed, arrivals, max_num_seqs, stands)
        return made
    for wall in walls:
        config = setup.config(variant, only=wall)
        engines = [
            _Builder(setup, variant, config.device.memory, t, max_num_seqs, seed).engine(
                arrivals[t.name], made, hierarchy
            )
            for t in config.tenants
        ]
        made.add(Arbiter.of(config, setup.rules(variant)), engines)
    return made


def _add_rostered(
    made: World,
    setup: Setup,
    variant: Variant,
    seed: int,
    arrivals: Mapping[str, Iterator[SimulatedRequest]],
    max_num_seqs: Mapping[str, int] | None,
    stands: Mapping[str, Stand | None] | None,
) -> None:
    """Add engines with a roster, which decides which of them are awake."""
    section, coming, rules = setup.experiment.roster, variant.coming, setup.rules(variant)
    assert section is not None
    asked = [t for t in setup.experiment.tenants if stands is None or t.name in stands]
    memory, tenants = setup.device_bytes, [setup.served(t.name) for t in asked]
    speeds = coming.speeds(section, setup.hardware)
    roster = Roster(memory, coming.rules(section))
    for t in tenants:
        spec = TenantSpec(t.name, t.share, t.priority, t.floor_layers, t.max_percent, **UNBOUNDED)
        own = coming.bytes_of(spec, setup.shapes[t.name], setup.hardware, rules)
        roster.applied(spec, own, speeds.times(own), made.now_s())
    if stands is None:
        popular = sorted(asked, key=lambda t: -(t.rate or 0))
        begin(roster, [t.name for t in popular], made.now_s())
    else:
        begin_placed(roster, stands, made.now_s())
    engines = [
        _Builder(setup, variant, memory, t, max_num_seqs, seed).engine(arrivals[t.name], made, None)
        for t in tenants
    ]
    served = [entitled(t) for t in tenants]
    patience_s = setup.experiment.sharing.patience_s
    controller = Controller(served, memory, variant.policy, rules, patience_s=patience_s)
    sharing = make_sharing([t.name for t in tenants], None)
    arbiter = Arbiter(controller, sharing, temporal=False, draining=Draining(False, 0.0))
    link = Lane(setup.hardware.link_gb_s.value * 1e9)
    made.add(arbiter, engines, partial(RosteredDomain, roster=roster, link=link, later=made.later))


class _Builder:
    """Builder of one tenant's simulated engine under one policy."""

    def __init__(
        self,
        setup: Setup,
        variant: Variant,
        memory: int,
        tenant: Served,
        max_num_seqs: Mapping[str, int] | None,
        seed: int,
    ) -> None:
        self.seed = seed
        self.setup, self.variant, self.rules = setup, variant, setup.rules(variant)
        limits, own = setup.experiment.limits, setup.tenant(tenant.name)
        most = own.max_num_seqs or limits.max_num_seqs
        self.max_num_seqs = most if max_num_seqs is None else max_num_seqs[tenant.name]
        self.max_num_batched_tokens = own.max_num_batched_tokens or limits.max_num_batched_tokens
        self.tenant = entitled(tenant)
        self.shape = setup.shapes[tenant.name]
        self.base = base(self.tenant, self.shape, memory)
        isolated = setup.experiment.sharing.isolated
        self.fraction = setup.share(tenant.name) / setup.total_share if isolated else 1.0

    def engine(
        self, arrivals: Iterator[SimulatedRequest], world: World, hierarchy: Hierarchy | None
    ) -> Engine:
        """The tenant's engine, with the memory of its share and its requests."""
        setup, name = self.setup, self.tenant.name
        model, parts = setup.models[name], setup.experiment.layer_parts
        exact = setup.experiment.pipeline == "layers"
        sets = LAYER_SETS[setup.experiment.layer_sets] if exact else None
        roofline = Roofline(model, setup.hardware, self.fraction, parts, sets)
        load_ps = self._over_link(self.shape.layer_bytes, setup.hardware.link_gb_s.value)
        whole = (name, self._holding(), roofline, load_ps, self._limits(), arrivals, world)
        costs = self._costs()
        if hierarchy is not None or setup.experiment.prefix_cache:
            return Engine(*whole, make_costs=costs, **self._reusing(roofline, hierarchy))
        token_ps = self._over_link(model.kv_token_bytes, setup.hardware.link_mixed_gb_s.value)
        own = self.variant.parts(roofline, token_ps, setup.experiment.limits.block_tokens)
        return Engine(*whole, **{"make_costs": costs} | own)

    def _costs(self) -> MakeCosts:
        """Costs of steps; including loads of experts if experts may be given away."""
        routing, model = self.setup.experiment.routing, self.setup.models[self.tenant.name]
        if routing is None or not self.shape.movable_experts or not self.rules.experts:
            return StepCosts
        routers = Routers(model, routing, f"routing {self.seed} {self.tenant.name}")
        return partial(ExpertCosts, routers=routers)

    def _reusing(self, roofline: Roofline, hierarchy: Hierarchy | None) -> dict[str, Any]:
        """Further arguments of an engine that keeps the KV blocks of finished requests."""
        tally = Tally()
        savings = Savings(tally, roofline)
        block_tokens = self.setup.experiment.limits.block_tokens
        if hierarchy is None:
            return {"reuse": PrefixCache(block_tokens, savings), "tally": tally}
        loads = self._loads(hierarchy, tally, savings)
        most = self.max_num_batched_tokens + self.max_num_seqs
        cache = PrefixCache(block_tokens, savings, loads, ceil_div(most, block_tokens))
        loads.cache = cache
        return {"reuse": cache, "loads": loads, "tally": tally}

    def _loads(self, hierarchy: Hierarchy, tally: Tally, savings: Savings) -> TierLoads:
        setup, name = self.setup, self.tenant.name
        model = setup.tenant(name).model.encode()
        block = self.shape.extent_bytes // self.shape.extent_blocks
        host = hierarchy.speeds.get(Medium.HOST)
        link = setup.hardware.link_mixed_gb_s.value * 1e9 * self.fraction
        bytes_per_s = min(link, host.bytes_per_s) if host else link
        return TierLoads(
            hierarchy,
            Member(name, model, block, Due(self.tenant.priority, self.tenant.share)),
            Lane(bytes_per_s),
            tally,
            savings,
        )

    def _over_link(self, nbytes: int, gb_s: float) -> int:
        """Picoseconds in which the tenant's part of a link of `gb_s` GB/s carries `nbytes`
        bytes.
        """
        return round(nbytes / (gb_s * 1e9 * self.fraction) * PS)

    def _holding(self) -> SimulatedMemory:
        experiment = self.setup.experiment
        copies = copies_of(LAYER_SETS[experiment.layer_sets], self.shape.layers)
        return SimulatedMemory(self.shape, self.base, copies, experiment.kv_blocks == "scattered")

    def _limits(self) -> StepLimits:
        experiment, rules = self.setup.experiment, self.rules
        shape, block_tokens = self.shape, experiment.limits.block_tokens
        most = ceil_div(self.setup.max_len(self.tenant.name), block_tokens)
        elastic = self.variant.policy is not Policy.STATIC
        return StepLimits(
            group=KVGroup("full_attention", shape.layers, block_tokens, most),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            elastic=elastic,
            temporal=experiment.sharing.mode == "temporal",
            hold_s=experiment.sharing.patience_s,
            headroom_extents=rules.headroom_extents,
            lookahead_steps=rules.lookahead_steps,
            kept=rules.kept(self.variant.policy),
            report_ps=round(experiment.report_s * PS),
            apply_ps=_milliseconds(self.setup.hardware.apply_ms.value),
        )


def _tiers(setup: Setup, variant: Variant) -> SimulatedTiers | None:
    """Tiers that the variant uses; None if it uses none, or no tier has a capacity."""
    return setup.experiment.tiers if variant.tiers and setup.speeds else None


def _milliseconds(value: float) -> int:
    """Picoseconds of `value` milliseconds."""
    return round(value * 1e-3 * PS)


def copies_of(sets: Sets, n: int) -> Callable[[Streamed, Streamed], int]:
    """Function that counts the layers to load when one streamed set (layers remapped, slots)
    becomes another.
    """

    @cache
    def streamed(remapped: int, slots: int) -> frozenset[int]:
        return frozenset(sets(n, remapped + slots if remapped else 0))

    def copies(before: Streamed, after: Streamed) -> int:
        return len(streamed(*before) - streamed(*after))

    return copies
