"""Worlds of more models than fit, drawn at random, and the ways of serving them.

A world is a machine, 5 to 50 models whose popularity falls by Zipf's law, and their load: arrivals
and lengths that are drawn, or those of a trace, of which each model has a window at its rate.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

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

OURS = "roster"
WAYS: Mapping[str, Variant] = {
    OURS: Variant(OURS, Policy.MIRAGE),
    "swap-models": Variant(
        "swap-models",
        Policy.MIRAGE,
        coming=Coming(sleeps=False, changes={"busy_worth": 0.0, "spare_part": 0.0}),
    ),
    "swap-long": Variant("swap-long", Policy.MIRAGE, coming=Coming(sleeps=False)),
    "sleep": Variant("sleep", Policy.MIRAGE, coming=Coming(copies=True)),
    "subset": Variant("subset", Policy.MIRAGE, coming=Coming(sleeps=False)),
}
COUNTS = 5, 50
"""Least and most models of a world."""
ZIPF = 0.7, 1.6
"""Least and greatest exponent of Zipf's law."""
RATES = 0.5, 8.0
"""Least and most requests a second of all models together."""
TTFT_S, TPOT_S = 5.0, 0.2
"""Limits of a request's TTFT and TPOT, in seconds."""


class Figures(NamedTuple):
    """Figures of one way of serving a world."""

    tokens_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    within: float
    """Part of all requests that were served within both limits."""


def draw(number: int, requests: int, trace: Path | None = None) -> World:
    """Draw the world of a number, with the load of a trace if there is one; a model may be too
    large for its machine.
    """
    rng = random.Random(f"roster {number}")
    count = round(exp(rng.uniform(log(COUNTS[0]), log(COUNTS[1]))))
    exponent = rng.uniform(*ZIPF)
    weights = [(place + 1) ** -exponent for place in range(count)]
    total = exp(rng.uniform(log(RATES[0]), log(RATES[1])))
    common, machine = rng.choice(LENGTHS), rng.choice(MACHINES)
    tenants = [
        {
            "name": f"m{place}",
            "model": rng.choice(MODELS),
            "rate": max(1e-4, round(total * weight / sum(weights), 5)),
        }
        for place, weight in enumerate(weights)
    ]
    asked: World = {"arrivals": rng.choice(("bursty", "poisson")), "lengths": common}
    if trace is not None:
        asked = {"arrivals": "windows", "file": str(trace), "lengths": "trace"}
    return world_of(f"world {number}", machine, tenants, asked | {"requests": requests})


def world_of(title: str, machine: str, tenants: list[World], asked: World) -> World:
    """Experiment's content for a machine, its tenants and their load."""
    return {
        "title": title,
        "hardware": machine,
        "tenants": tenants,
        "roster": {},
        "limits": {"max_model_len": 2048},
        "workload": asked,
        "policies": list(WAYS),
    }


def drawn(first: int, requests: int, trace: Path | None = None) -> Iterator[World]:
    """Worlds in which each model fits, from number `first` on, for ever."""
    number = first
    while True:
        world = draw(number, requests, trace)
        number += 1
        try:
            build.world(setup(world), WAYS[OURS], 0)
        except (ConfigError, NeverServedError):
            continue
        yield world


def setup(world: World) -> Setup:
    """Setup of a world, which also knows the ways and variants as policies."""
    return Setup(Experiment.model_validate(world), known={**VARIANTS, **WAYS})


@dataclass
class Judged(Observer):
    """Observer that counts the finished requests within limits."""

    world: SimulatedWorld
    within: int = 0

    def finished(self, engine: Engine, request: Any) -> None:
        now = self.world.now
        first_s = (request.first - request.arrival) / PS
        token_s = (now - request.first) / PS / max(1, request.output - 1)
        self.within += first_s <= TTFT_S and token_s <= TPOT_S


def served(world: World, way: str, seed: int) -> Figures:
    """Simulate a world by one way; returns its figures."""
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
    """Names of the models that are awake when a world begins. In the way `subset` only these are
    served.
    """
    (domain,) = build.world(made, WAYS["subset"], 0).domains
    assert isinstance(domain, RosteredDomain)
    return {n for n, m in domain.roster.members.items() if m.state is LifeState.READY}


def about(world: World) -> str:
    """Short text on a world, as ``h100, 12 models, 3.1/s, poisson sharegpt``."""
    rate = sum(tenant["rate"] for tenant in world["tenants"])
    kind = f"{world['workload']['arrivals']} {world['workload']['lengths']}"
    return f"{world['hardware']}, {len(world['tenants'])} models, {rate:.1f}/s, {kind}"
