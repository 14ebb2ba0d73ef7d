"""One experiment under one policy and one seed, from start to its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from mirage.samples import PLACES
from mirage.simulate import build, workload
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Setup
from mirage.simulate.roofline import NEVER, PS
from mirage.simulate.tally import Distribution, SimulatedCounters
from mirage.simulate.world import World

Metrics = dict[str, Any]
MS = PS / 1000
PERCENTS = [50.0, 90.0, 99.0]
PLOTTED = [percent / 2 for percent in range(201)]
"""Percentiles of latencies that the report's pictures show."""


def run(
    setup: Setup,
    policy: str,
    seed: int,
    *,
    skipping: bool = True,
    begun: Callable[[World], None] = lambda world: None,
) -> Metrics:
    """All metrics of a run, with the names that ``vllm bench serve`` has for them, and further ones
    of memory.

    Values are numbers, strings, lists and dictionaries of these, and None for a latency without
    values; they are the same for the same seed. `skipping` simulates many equal steps in one go.
    `begun` is called with the world before the simulated time begins, for example to set an
    observer.
    """
    world = build.world(setup, setup.variant(policy), seed, skipping=skipping)
    begun(world)
    start = workload.peak_end(setup, seed)
    run_from(world, start)
    found = measured(policy, seed, {engine.name: [engine] for engine in world.engines}, start)
    found["timelines"] = {engine.name: timeline(engine) for engine in world.engines}
    return found


class Runnable(Protocol):
    """World or fleet whose engines count what they do."""

    @property
    def engines(self) -> list[Engine]:
        """All engines."""

    def run(self, until: int = NEVER) -> None:
        """Run to a time in picoseconds, or to the end."""

    def check(self) -> None:
        """Raise `LedgerError` or `AssertionError` if memory is over-committed."""


def run_from(simulated: Runnable, start: int) -> None:
    """Run to the end and check the result. Measuring begins at `start` picoseconds."""
    if start:
        simulated.run(until=start)
        for engine in simulated.engines:
            engine.tally.restart()
    simulated.run()
    simulated.check()
    for engine in simulated.engines:
        engine.tally.flush()


def measured(
    policy: str, seed: int, tenants: Mapping[str, list[Engine]], start: int = 0
) -> Metrics:
    """Metrics over all `tenants`, given with their engines, and of each. Measuring began at `start`
    picoseconds. The timelines are empty.
    """
    engines = [engine for each in tenants.values() for engine in each]
    return {
        "policy": policy,
        "seed": seed,
        **metrics(engines, start),
        "tenants": {name: metrics(each, start) for name, each in tenants.items()},
        "curves": {f"{name}_ms": curve(engines, name) for name in ("ttft", "itl")},
        "timelines": {},
    }


def metrics(engines: list[Engine], start: int = 0) -> Metrics:
    """Metrics over all requests of `engines`; measuring began at `start` picoseconds."""
    tallies = [engine.tally for engine in engines]
    counters = [tally.counters for tally in tallies]
    last = max(tally.last_finish for tally in tallies)
    duration = max(0, last - start) / PS
    tokens = sum(c.output_tokens for c in counters)
    completed = sum(c.completed for c in counters)
    return {
        "completed": completed,
        "duration": duration,
        "total_input_tokens": sum(c.prompt_tokens for c in counters),
        "total_output_tokens": tokens,
        "request_throughput": completed / duration if duration > 0 else 0.0,
        "output_throughput": tokens / duration if duration > 0 else 0.0,
        **_latency("ttft_ms", [tally.ttft for tally in tallies]),
        **_latency("tpot_ms", [tally.tpot for tally in tallies]),
        **_latency("itl_ms", [tally.gaps.distribution for tally in tallies]),
        **_latency("e2el_ms", [tally.e2el for tally in tallies]),
        **_counted(counters),
    }


def curve(engines: list[Engine], latency: Literal["ttft", "itl"]) -> list[float]:
    """Latencies in milliseconds at the percentiles `PLOTTED`, for a cumulative plot; empty if there
    are no values.
    """
    merged = Distribution()
    for engine in engines:
        tally = engine.tally
        merged.merge(tally.ttft if latency == "ttft" else tally.gaps.distribution)
    return [v / MS for v in merged.percentiles(PLOTTED)] if merged.count else []


def timeline(engine: Engine) -> dict[str, list[float]]:
    """Memory of an engine over time, by column: seconds, KV extents, used blocks, layers
    remapped.
    """
    columns = list(zip(*engine.tally.timeline.samples, strict=True)) or [()] * 4
    return {
        "t": [time / PS for time in columns[0]],
        "kv_extents": list(columns[1]),
        "kv_used_blocks": list(columns[2]),
        "layers_remapped": list(columns[3]),
    }


def _latency(name: str, parts: list[Distribution]) -> Metrics:
    merged = Distribution()
    for part in parts:
        merged.merge(part)
    if not merged.count:
        return {f"{kind}_{name}": None for kind in ("mean", "p50", "p90", "p99")}
    values = merged.percentiles(PERCENTS)
    found = {f"p{percent:.0f}_{name}": v / MS for percent, v in zip(PERCENTS, values, strict=True)}
    return {f"mean_{name}": merged.mean() / MS, **found}


def _reused(counters: list[SimulatedCounters]) -> Metrics:
    found = {f"tokens_from_{place}": sum(c.found[place] for c in counters) for place in PLACES}
    return {
        **found,
        "tokens_avoided": sum(found.values()),
        "saved_s": sum(c.saved_ps for c in counters) / PS,
        "kv_bytes_up": sum(c.bytes_up for c in counters),
        "kv_bytes_down": sum(c.bytes_down for c in counters),
        "late_loads": sum(c.late_loads for c in counters),
        "spills": sum(c.spills for c in counters),
    }


def _counted(counters: list[SimulatedCounters]) -> Metrics:
    return {
        "steps": sum(c.steps for c in counters),
        "preemptions": sum(c.preemptions for c in counters),
        "holds": sum(c.holds for c in counters),
        "moves": sum(c.moves for c in counters),
        "layers_remapped_max": max(c.most_remapped for c in counters),
        "experts_remapped_max": max(c.most_experts for c in counters),
        "expert_loads": sum(c.expert_loads for c in counters),
        "bytes_streamed": sum(c.bytes_streamed for c in counters),
        "bytes_restored": sum(c.bytes_restored for c in counters),
        "busy_s": sum(c.busy_ps for c in counters) / PS,
        **_reused(counters),
    }
