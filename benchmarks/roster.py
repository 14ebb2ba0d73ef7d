"""More models than fit, in worlds drawn at random: the roster beside three other ways.

    .venv/bin/python -m benchmarks.roster [--worlds 20] [--first 0] [--seeds 0] [FILE ...]

A world is a machine, 5 to 50 models whose popularity falls by Zipf's law, and their load. In each,
the same requests are served four ways. `roster` lets models sleep by giving their layers away;
`swap-models` ends one process to start another, from host memory, with the time that ours takes;
`sleep` copies all weights out and in, as vLLM's level 1 does; `subset` serves the most popular that
fit, and nobody else. All move memory between those that are awake by policy mirage. Prints each
world, the geometric means of roster over each other way with 95 % intervals, and the worst worlds.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.worlds import LENGTHS, MACHINES, MODELS, World
from mirage.config import ConfigError, Policy
from mirage.control.roster.needs import NeverServedError
from mirage.control.roster.states import LifeState
from mirage.simulate import build, run, workload
from mirage.simulate.coming import Coming
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.roofline import PS
from mirage.simulate.rostered import RosteredDomain
from mirage.simulate.variants import VARIANTS, Variant
from mirage.simulate.world import Observer
from mirage.simulate.world import World as SimulatedWorld
from mirage.tools.report import intervals
from mirage.tools.simulate.command import parse_seeds

OURS = "roster"
WAYS: Mapping[str, Variant] = {
    OURS: Variant(OURS, Policy.MIRAGE),
    "swap-models": Variant("swap-models", Policy.MIRAGE, coming=Coming(sleeps=False)),
    "sleep": Variant("sleep", Policy.MIRAGE, coming=Coming(copies=True)),
    "subset": Variant("subset", Policy.MIRAGE, coming=Coming(sleeps=False)),
}
COUNTS = 5, 50
"""Models."""
ZIPF = 0.7, 1.6
"""Exponents."""
RATES = 0.5, 8.0
"""Requests a second of all models together."""
TTFT_S, TPOT_S = 5.0, 0.2
"""Limits of a request."""
WORST = 3


class Figures(NamedTuple):
    """Figures of one way of serving a world."""

    tokens_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    within: float
    """Part of all requests that were served within both limits."""


HEAD = (
    "| world | way | tokens/s | TTFT P50 s | TTFT P99 s | within limits |\n"
    "|---|---|---:|---:|---:|---:|"
)


def draw(number: int, requests: int) -> World:
    """The world of that number; it may be one in which a model does not fit."""
    rng = random.Random(f"roster {number}")
    count = round(exp(rng.uniform(log(COUNTS[0]), log(COUNTS[1]))))
    exponent = rng.uniform(*ZIPF)
    weights = [(place + 1) ** -exponent for place in range(count)]
    total = exp(rng.uniform(log(RATES[0]), log(RATES[1])))
    common = rng.choice(LENGTHS)
    return {
        "title": f"world {number}",
        "hardware": rng.choice(MACHINES),
        "tenants": [
            {
                "name": f"m{place}",
                "model": rng.choice(MODELS),
                "rate": max(1e-4, round(total * weight / sum(weights), 5)),
            }
            for place, weight in enumerate(weights)
        ],
        "roster": {},
        "limits": {"max_model_len": 2048},
        "workload": {
            "arrivals": rng.choice(("bursty", "poisson")),
            "requests": requests,
            "lengths": common,
        },
        "policies": list(WAYS),
    }


def drawn(first: int, requests: int) -> Iterator[World]:
    """Worlds in which each model fits, from number `first` on, for ever."""
    number = first
    while True:
        world = draw(number, requests)
        number += 1
        try:
            build.world(setup(world), WAYS[OURS], 0)
        except (ConfigError, NeverServedError):
            continue
        yield world


def setup(world: World) -> Setup:
    """A world's content, looked up."""
    return Setup(Experiment.model_validate(world), known={**VARIANTS, **WAYS})


@dataclass
class Judged(Observer):
    """Counts requests within limits."""

    world: SimulatedWorld
    within: int = 0

    def finished(self, engine: Engine, request: Any) -> None:
        now = self.world.now
        first_s = (request.first - request.arrival) / PS
        token_s = (now - request.first) / PS / max(1, request.output - 1)
        self.within += first_s <= TTFT_S and token_s <= TPOT_S


def served(world: World, way: str, seed: int) -> Figures:
    """One run."""
    made = setup(world)
    arrivals = workload.requests(made, seed)
    if way == "subset":
        awake = _awake(made)
        arrivals = {name: r if name in awake else iter(()) for name, r in arrivals.items()}
    simulated = build.world(made, WAYS[way], seed, arrivals=arrivals)
    judged = Judged(simulated)
    simulated.observer = judged
    simulated.run()
    simulated.check()
    for engine in simulated.engines:
        engine.tally.flush()
    found = run.metrics(simulated.engines)
    return Figures(
        found["output_throughput"],
        found["p50_ttft_ms"],
        found["p99_ttft_ms"],
        judged.within / world["workload"]["requests"],
    )


def _awake(made: Setup) -> set[str]:
    """Models that are awake when a world begins, none of them asleep."""
    (domain,) = build.world(made, WAYS["subset"], 0).domains
    assert isinstance(domain, RosteredDomain)
    return {n for n, m in domain.roster.members.items() if m.state is LifeState.READY}


def about(world: World) -> str:
    """``h100, 12 models, 3.1/s, poisson``."""
    rate = sum(tenant["rate"] for tenant in world["tenants"])
    kind = f"{world['workload']['arrivals']} {world['workload']['lengths']}"
    return f"{world['hardware']}, {len(world['tenants'])} models, {rate:.1f}/s, {kind}"


def row(title: str, way: str, f: Figures) -> str:
    """One of the table under `HEAD`."""
    times = f"{f.ttft_p50_ms / 1e3:.2f} | {f.ttft_p99_ms / 1e3:.2f}"
    return f"| {title} | {way} | {f.tokens_s:.0f} | {times} | {f.within:.3f} |"


Found = dict[str, Figures]
"""By way."""


def summary(every: Sequence[tuple[str, Found]]) -> None:
    """Means of roster over each other way, and the worlds where it does worst."""
    for way in [name for name in WAYS if name != OURS]:
        parts = []
        for name in ("tokens_s", "ttft_p50_ms", "ttft_p99_ms"):
            logs = [log(getattr(f[OURS], name) / getattr(f[way], name)) for _, f in every]
            parts.append(f"{name} {_told([exp(end) for end in bounds(logs)])}")
        points = bounds([100 * (f[OURS].within - f[way].within) for _, f in every])
        parts.append(f"within limits {_told(points, '+.1f')} points")
        print(f"{OURS} over {way}: " + ", ".join(parts))
        worst = sorted(every, key=lambda each: each[1][OURS].tokens_s / each[1][way].tokens_s)
        for title, f in worst[:WORST]:
            tokens, points_ = f[OURS].tokens_s / f[way].tokens_s, f[OURS].within - f[way].within
            print(f"  worst: {title}: tokens/s {tokens:.3f}, within {100 * points_:+.1f} points")


def bounds(values: Sequence[float]) -> list[float]:
    """The mean, and the ends of its 95 % interval; the mean three times for one value."""
    found = intervals.mean(values)
    half = found.half or 0.0
    return [found.value, found.value - half, found.value + half]


def _told(ends: Sequence[float], form: str = ".3f") -> str:
    mean, low, high = (format(end, form) for end in ends)
    return f"{mean} ({low} to {high})"


def main() -> None:
    asked = arguments()
    worlds = [yaml.safe_load(file.read_text()) for file in asked.files]
    source = iter(worlds) if worlds else drawn(asked.first, asked.requests)
    every: list[tuple[str, Found]] = []
    print(HEAD)
    for world, _ in zip(source, range(len(worlds) or asked.worlds), strict=False):
        for seed in asked.seeds:
            title = f"{world['title']}, seed {seed} ({about(world)})"
            found = {way: served(world, way, seed) for way in WAYS}
            every.append((title, found))
            for way, figures in found.items():
                print(row(title, way, figures), flush=True)
    print()
    summary(every)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    parser.add_argument("--worlds", type=int, default=20, help="how many are drawn")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seeds", type=parse_seeds, default=[0], help="as 0-4, 3 or 0,2,7")
    parser.add_argument("--requests", type=int, default=300, help="of each drawn world")
    return parser.parse_args()


if __name__ == "__main__":
    main()
