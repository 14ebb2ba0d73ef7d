"""Simulation of a configuration: an experiment with its models, its machine, and a window of a
trace.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from mirage.config import Config, Policy
from mirage.control.targets import DoesNotFitError
from mirage.profiles import Hardware, Model, SourcedPositive
from mirage.protocol import Report
from mirage.simulate import build
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import (
    EngineLimits,
    Experiment,
    Setup,
    SimulatedSharing,
    SimulatedTenant,
    Workload,
)
from mirage.simulate.roofline import PS
from mirage.simulate.variants import variant
from mirage.simulate.world import Observer, World
from mirage.tools.explain.machine import as_configured
from mirage.tools.tune.goals import CompletedRequest, WindowResult
from mirage.tools.tune.windows import Window
from mirage.units import GIB
from mirage.workload import dealing
from mirage.workload.dealing import TenantRequest
from mirage.workload.load import REQUESTS, evenly
from traces import SAMPLE


@dataclass(frozen=True)
class Bench:
    """All that a run needs except the configuration: machine, models by tenant, windows by
    number.
    """

    hardware: Hardware
    page_bytes: int
    models: Mapping[str, Model]
    windows: Mapping[int, Window]
    time_scale: float
    length_scale: float

    @cached_property
    def pickled(self) -> bytes:
        """Pickled form, to be sent to processes."""
        return pickle.dumps(self)


@dataclass(frozen=True)
class WindowRun:
    """One configuration on one window, whose requests are dealt to tenants by a seed.

    `slower` is a further factor on gaps. With `at_once`, arrivals are ignored: so many requests are
    always in flight, as when `mirage replay` measures the machine.
    """

    config: Config
    window: int
    seed: int
    slower: float = 1.0
    at_once: int | None = None


def simulate(bench: Bench, run: WindowRun) -> WindowResult | None:
    """Result of a run; None for a configuration that does not fit."""
    try:
        setup = experiment(bench, run.config)
    except (ValueError, DoesNotFitError):
        return None
    config, window = run.config, bench.windows[run.window]
    scale = bench.time_scale * run.slower
    calls = dealing.build(config, window.requests, scale, bench.length_scale, run.seed)
    left = list[TenantRequest]()
    if run.at_once is not None:
        chosen = [replace(call, at_s=0.0) for call in evenly(calls, REQUESTS)]
        calls, left = chosen[: run.at_once], chosen[run.at_once :]
    arrivals = {
        tenant.name: iter(
            [_request(c, round(c.at_s * PS)) for c in calls if c.tenant == tenant.name]
        )
        for tenant in config.tenants
    }
    world = build.world(setup, variant(str(config.policy)), run.seed, arrivals=arrivals)
    seen = _Seen(world, left)
    world.observer = seen
    world.run()
    world.check()
    return seen.outcome()


def _request(call: TenantRequest, arrival: int) -> SimulatedRequest:
    return SimulatedRequest(call.index, arrival, call.context_tokens, call.output_tokens)


def experiment(bench: Bench, config: Config) -> Setup:
    """Experiment of a configuration. Raises `ConfigError` if it does not fit.

    Device memory outside all shares is left out, although real engines would use it.
    """
    memory = SourcedPositive(value=config.device.memory / GIB, source="device.memory")
    hardware = as_configured(bench.hardware, bench.page_bytes)
    hardware = hardware.model_copy(update={"memory_gib": memory})
    return Setup(
        Experiment(
            title="tune",
            tenants=[_tenant(config, name) for name in bench.models],
            sharing=SimulatedSharing(**config.sharing.model_dump()),
            workload=Workload(arrivals="trace", file=Path(SAMPLE)),
            limits=EngineLimits(block_tokens=config.block_tokens),
            remap=config.remap,
        ),
        hardware=hardware,
        models=bench.models,
    )


def _tenant(config: Config, name: str) -> SimulatedTenant:
    tenant = config.tenant(name)
    return SimulatedTenant(
        name=name,
        model=name,
        share=tenant.percent,
        priority=tenant.priority,
        floor_layers=tenant.floor_layers,
        max_percent=tenant.max_percent if config.policy is Policy.MIRAGE else None,
        max_num_seqs=tenant.max_num_seqs,
        max_num_batched_tokens=tenant.max_num_batched_tokens,
        max_model_len=tenant.max_model_len,
    )


class _Seen(Observer):
    """Observer that collects finished requests and lent bytes, separately for owners with and
    without work.

    Whenever a request finishes, the next of `left` is sent.
    """

    def __init__(self, world: World, left: Iterable[TenantRequest]) -> None:
        self._world, self._left = world, iter(left)
        self._engines = {engine.name: engine for engine in world.engines}
        self._rows: list[CompletedRequest] = []
        self._lent: dict[str, tuple[int, int, bool]] = {}
        """For each model: time in picoseconds since which it has lent, bytes lent, and True if it
        had work.
        """
        self._sums = {True: 0.0, False: 0.0}

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        now = self._world.now
        after = max(1, request.output - 1)
        self._rows.append(
            CompletedRequest(
                (request.first - request.arrival) / PS,
                (now - request.first) / PS / after,
                request.longest / PS,
                (now - request.arrival) / PS,
                request.output,
                now / PS,
            )
        )
        if (call := next(self._left, None)) is not None:
            self._engines[call.tenant].come(_request(call, now), now)

    def reported(self, engine: Engine, report: Report) -> None:
        self._count(engine.name)
        nbytes = report.layers_remapped * engine.holding.shape.layer_bytes
        busy = report.running + report.waiting > 0
        self._lent[engine.name] = (self._world.now, nbytes, busy)

    def outcome(self) -> WindowResult:
        """Result of the window, after the simulation has ended."""
        for name in list(self._lent):
            self._count(name)
        counters = [engine.tally.counters for engine in self._world.engines]
        return WindowResult(
            rows=tuple(self._rows),
            duration_s=max(e.tally.last_finish for e in self._world.engines) / PS,
            preemptions=sum(each.preemptions for each in counters),
            lent_idle=self._sums[False],
            lent_active=self._sums[True],
            streamed=sum(each.bytes_streamed for each in counters),
        )

    def _count(self, name: str) -> None:
        if name in self._lent:
            since, nbytes, busy = self._lent[name]
            self._sums[busy] += nbytes * (self._world.now - since) / PS
