"""Simulation of a replay's requests on the measured host, for the cross-check.

A host differs from a GPU in ways for which its profile has no figures, so they are added here.
Engines compute on several cores, one thread each, and share these with the processes before them:
router, API servers and client. All of a step is computed on those cores, its overhead too. The way
of a request to its engine is work for those cores as well.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.front_ends import FrontEnds
from benchmarks.host_world import Coming, HostWorld
from mirage import profiles
from mirage.config import Config
from mirage.profiles import Hardware, Model
from mirage.protocol import ModelShape, Report
from mirage.simulate import build, experiment
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.prefix import Prefix
from mirage.simulate.roofline import PS, CostBound, Roofline, Streaming, plus
from mirage.simulate.run import Metrics, metrics
from mirage.simulate.tier_settings import SimulatedHostTier, SimulatedTiers
from mirage.simulate.variants import variant
from mirage.tools.profile.serving import Extra, Serving
from mirage.workload.dealing import TenantRequest
from traces import SAMPLE

REPORT_S = 0.02
"""Shortest time between two reports of a real engine (`mirage.engine.conversation`)."""
SAMPLE_S = 0.1
"""Seconds between two samples of `mirage serve`."""


@dataclasses.dataclass(frozen=True)
class Host(Serving):
    """Properties of the machine during a replay that a hardware profile does not have."""

    others: float = 0.0
    """Mean number of other processes that want a core."""
    steps: Mapping[str, CostBound] = dataclasses.field(default_factory=dict)
    """Cost of each model's own steps, by its title: a profile has one roofline for all models."""


NOTHING = CostBound(0, 0, 0, 0, 0)


class HostRoofline(Roofline):
    """Roofline in which a step takes longer if other engines compute beside it."""

    def __init__(self, model: Model, hardware: Hardware, *args: Any, host: Host) -> None:
        super().__init__(model, hardware, *args)
        self._host = host
        if (own := host.steps.get(model.title)) is not None:
            self.overhead, self.compute = NOTHING, (own,)

    def _bounds(self, streaming: Streaming, co_runners: int) -> tuple[CostBound, ...]:
        """Bounds of a step: that of an engine with a core of its own, and that of all engines
        sharing all cores.
        """
        host = self._host
        dearer = host.inflation[min(co_runners, len(host.inflation)) - 1]
        served = [plus(bound, _bound(host.engine)) for bound in super()._bounds(Streaming(), 1)]
        own = [_times(bound, dearer) for bound in served]
        # The copies that a step asks for are made on the same cores.
        copied = (streaming.layers_remapped + streaming.stream_slots) * round(host.load_s * PS)
        copies = CostBound(copied, 0, 0, 0, 0)
        beside = plus(_bound(host.front), copies if streaming.layers_remapped else NOTHING)
        spent = [plus(bound, beside) for bound in own]
        bounds = own + [_times(bound, (co_runners + host.others) / host.cores) for bound in spent]
        if streaming.layers_remapped:
            bounds += self._streamed(bounds, streaming)
        return tuple(bounds)


def _bound(extra: Extra) -> CostBound:
    return CostBound(round(extra.step_s * PS), round(extra.token_s * PS), 0, 0, 0)


def _times(bound: CostBound, factor: float) -> CostBound:
    return CostBound(*(round(value * factor) for value in bound))


def setup(config: Config, hardware: Path, shapes: Mapping[str, ModelShape]) -> Setup:
    """Experiment of `config` on the measured host, with the engines' own shapes."""
    first, host = config.tenants[0], config.tiers.host
    tenants = [
        experiment.SimulatedTenant(
            name=t.name,
            model=f"demo-{t.name}",
            share=t.percent,
            priority=t.priority,
            floor_layers=t.floor_layers,
        )
        for t in config.tenants
    ]
    limits = experiment.EngineLimits(
        max_num_batched_tokens=first.max_num_batched_tokens,
        max_model_len=first.max_model_len,
        block_tokens=config.block_tokens,
    )
    made = Setup(
        Experiment(
            title="cross-check",
            hardware=str(hardware),
            tenants=tenants,
            sharing=experiment.SimulatedSharing(**config.sharing.model_dump()),
            workload=experiment.Workload(arrivals="trace", file=Path(SAMPLE)),
            limits=limits,
            remap=config.remap,
            report_s=REPORT_S,
            tiers=host and SimulatedTiers(host=SimulatedHostTier(bytes=host.bytes)),
        ),
        hardware=tiered(profiles.hardware(str(hardware))),
    )
    made.shapes.update(shapes)
    return made


def tiered(hardware: Hardware) -> Hardware:
    """Hardware profile with a host tier as fast as the loads of layers, whose masters are in the
    same memory.
    """
    speed = profiles.MediumSpeed(
        capacity_gib=profiles.SourcedPositive(value=1024, source="any capacity"),
        bandwidth_gb_s=hardware.link_gb_s,
        latency_us=profiles.Sourced(value=0, source="inside what a step adds"),
    )
    return hardware.model_copy(update={"tiers": profiles.HardwareTiers(host=speed)})


def simulate(
    config: Config,
    made: Setup,
    policy: str,
    calls: Sequence[TenantRequest],
    host: Host,
) -> Metrics:
    """Figures of `mirage simulate` under a policy, and those that `mirage replay` would find for
    all tenants together. Spilled requests count as preempted, as in an engine.
    """
    sent = coming(calls, host)
    world = host_world(config, made, policy, host)
    world.send(sent)
    world.run()
    world.check()
    for engine in world.engines:
        engine.tally.flush()
    found = metrics(world.engines)
    found["preemptions"] += found["spills"]
    return found | sampled(world) | first_tokens([each.request for each in sent], calls)


def host_world(config: Config, made: Setup, policy: str, host: Host) -> HostWorld:
    """World of the engines without requests, on cores that they share with front ends."""
    fronts = FrontEnds[Coming](host.cores, host.others)
    with (
        mock.patch.object(build, "Roofline", partial(HostRoofline, host=host)),
        mock.patch.object(build, "World", partial(HostWorld, fronts=fronts)),
    ):
        most = {tenant.name: tenant.max_num_seqs for tenant in config.tenants}
        none_known = {name: iter(()) for name in most}
        world = build.world(made, variant(policy), seed=0, arrivals=none_known, max_num_seqs=most)
    assert isinstance(world, HostWorld)
    return world


def first_tokens(requests: Sequence[SimulatedRequest], calls: Sequence[TenantRequest]) -> Metrics:
    """Mean, P50 and P99 of TTFT in milliseconds, counted from the sending of each request."""
    values = [(r.first / PS - c.at_s) * 1e3 for r, c in zip(requests, calls, strict=True)]
    middle, late = np.percentile(values, (50, 99))
    return {"mean_ttft_ms": np.mean(values), "p50_ttft_ms": middle, "p99_ttft_ms": late}


def sampled(world: HostWorld) -> Metrics:
    """Figures of the samples that a replay would read from a server, for all tenants together. They
    end with the last report, because the controller may have deadlines long after the last request.
    """
    remapped_counts, blocks = [], []
    holds: dict[str, Report] = {}
    said = deque(sorted(world.said, key=itemgetter(0)))
    for sample in np.arange(0, said[-1][0], SAMPLE_S):
        while said and said[0][0] <= sample:
            _, name, report = said.popleft()
            holds[name] = report
        remapped_counts.append(sum(r.layers_remapped for r in holds.values()))
        blocks.append(sum(r.kv_blocks for r in holds.values()))
    return {
        "layers_remapped_max": max(remapped_counts),
        "layers_remapped_mean": float(np.mean(remapped_counts)),
        "kv_blocks_granted_max": max(blocks),
    }


def coming(calls: Sequence[TenantRequest], host: Host) -> list[Coming]:
    """Requests on their way to their engines, in the order of the calls.

    A request that is alone takes `latency_s` to reach its engine, a part of which is work of front
    ends. The last front end is the engine's own process, which reads beside its steps.
    """
    works = [round(seconds * PS) for seconds in host.reading]
    waits_s = max(0.0, host.latency_s - sum(host.reading))
    found = []
    for call in calls:
        fronts = "client", "router", f"server of {call.tenant}", f"engine of {call.tenant}"
        way = [(front, work) for front, work in zip(fronts, works, strict=True) if work]
        found.append(Coming(call.tenant, _request(call, call.at_s + waits_s), way))
    return found


def _request(call: TenantRequest, at_s: float) -> SimulatedRequest:
    request = SimulatedRequest(
        call.index, round(at_s * PS), call.context_tokens, call.output_tokens
    )
    # Every prompt is drawn for itself: what one shares is with itself, once it was preempted.
    request.prefix = Prefix(f"demo-{call.tenant}".encode(), str(call.index), call.context_tokens)
    return request
