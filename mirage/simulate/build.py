"""From an experiment to a world that is ready to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

from mirage.config import Config, Policy
from mirage.config import Tenant as Served
from mirage.control.arbiter import Arbiter
from mirage.control.targets import base, entitled
from mirage.simulate import workload
from mirage.simulate.batch import Request
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Setup
from mirage.simulate.holding import Holding
from mirage.simulate.limits import StepLimits
from mirage.simulate.roofline import LAYER_SETS, PS, Roofline, Sets
from mirage.simulate.swap import SpillCosts, SpillRoom
from mirage.simulate.variants import Variant
from mirage.simulate.world import World

Streamed = tuple[int, int]
"""Alpha and beta."""


def world(
    setup: Setup,
    variant: Variant,
    seed: int,
    *,
    skipping: bool = True,
    arrivals: Mapping[str, Iterator[Request]] | None = None,
    max_num_seqs: Mapping[str, int] | None = None,
) -> World:
    """Engines with their requests, and the deciders of their memory.

    `arrivals` are the requests of each tenant, instead of those that the experiment draws, and
    `max_num_seqs` the most in one step, instead of the same for all.
    """
    sharing = setup.experiment.sharing
    co_running = sharing.mode == "spatial" and not sharing.isolated
    message_ps = _milliseconds(setup.hardware.message_ms.value)
    made = World(skipping=skipping, co_running=co_running, message_ps=message_ps)
    arrivals = workload.requests(setup, seed) if arrivals is None else arrivals
    walls = [t.name for t in setup.experiment.tenants] if sharing.isolated else [None]
    for wall in walls:
        config = setup.config(variant, only=wall)
        engines = [
            _Builder(setup, variant, config, t, max_num_seqs).engine(arrivals[t.name], made)
            for t in config.tenants
        ]
        made.add(Arbiter.of(config, setup.rules(variant)), engines)
    return made


class _Builder:
    """One tenant's engine, under one policy."""

    def __init__(
        self,
        setup: Setup,
        variant: Variant,
        config: Config,
        tenant: Served,
        max_num_seqs: Mapping[str, int] | None,
    ) -> None:
        self.setup, self.variant, self.rules = setup, variant, setup.rules(variant)
        limits, own = setup.experiment.limits, setup.tenant(tenant.name)
        most = own.max_num_seqs or limits.max_num_seqs
        self.max_num_seqs = most if max_num_seqs is None else max_num_seqs[tenant.name]
        self.max_num_batched_tokens = own.max_num_batched_tokens or limits.max_num_batched_tokens
        self.tenant = entitled(tenant)
        self.shape = setup.shapes[tenant.name]
        self.base = base(self.tenant, self.shape, config.device.memory)
        isolated = setup.experiment.sharing.isolated
        self.fraction = setup.share(tenant.name) / setup.total_share if isolated else 1.0

    def engine(self, arrivals: Iterator[Request], world: World) -> Engine:
        """The engine, with its share's memory and its requests."""
        setup, name = self.setup, self.tenant.name
        model, parts = setup.models[name], setup.experiment.layer_parts
        exact = setup.experiment.pipeline == "layers"
        sets = LAYER_SETS[setup.experiment.layer_sets] if exact else None
        roofline = Roofline(model, setup.hardware, self.fraction, parts, sets)
        load_ps = self._over_link(self.shape.layer_bytes, setup.hardware.link_gb_s.value)
        whole = (name, self._holding(), roofline, load_ps, self._limits(), arrivals, world)
        if not self.variant.swaps:
            return Engine(*whole)
        mixed = setup.hardware.link_mixed_gb_s.value
        token_ps = self._over_link(model.kv_token_bytes, mixed)
        block_tokens = setup.experiment.limits.block_tokens
        return Engine(
            *whole,
            make_room=partial(SpillRoom, roofline=roofline, token_ps=token_ps),
            make_costs=partial(SpillCosts, token_ps=token_ps, block_tokens=block_tokens),
        )

    def _over_link(self, nbytes: int, gb_s: float) -> int:
        """Picoseconds."""
        return round(nbytes / (gb_s * 1e9 * self.fraction) * PS)

    def _holding(self) -> Holding:
        experiment = self.setup.experiment
        copies = _copies(LAYER_SETS[experiment.layer_sets], self.shape.layers)
        return Holding(self.shape, self.base, copies, experiment.kv_blocks == "scattered")

    def _limits(self) -> StepLimits:
        experiment, rules = self.setup.experiment, self.rules
        elastic = self.variant.policy is not Policy.STATIC
        return StepLimits(
            block_tokens=experiment.limits.block_tokens,
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


def _milliseconds(value: float) -> int:
    """In picoseconds."""
    return round(value * 1e-3 * PS)


def _copies(sets: Sets, n: int) -> Callable[[Streamed, Streamed], int]:
    """Layers to load when the streamed set of the first becomes that of the second."""

    @cache
    def streamed(alpha: int, beta: int) -> frozenset[int]:
        return frozenset(sets(n, alpha + beta if alpha else 0))

    def copies(before: Streamed, after: Streamed) -> int:
        return len(streamed(*before) - streamed(*after))

    return copies
