"""Harm of `mirage` compared with `pooled`, in worlds drawn at random.

    .venv/bin/python -m benchmarks.worlds [--worlds 40] [--first 0] [--output DIR] [FILE ...]

A world is a machine, two to four models and their loads, in turns of 0.5 to 5 s, drained or not, or
with spatial sharing. A world is harmed if `mirage` has less than 0.98 of `pooled`'s tokens a
second, or an end-to-end mean or P99 more than 1.05 times as long. The program simulates each world
under both policies, and prints a row for each, then the number of harmed ones and the spread of
each figure. FILEs are simulated instead of drawn worlds. Harmed worlds are written into DIR.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ablations
from mirage.config import ConfigError
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.run import run

MACHINES = ("gh200", "h100", "h200", "a100")
MODELS = ("opt-6.7b", "opt-13b", "opt-30b", "llama-2-7b", "llama-2-13b", "llama-3-8b", "qwen2.5-7b")
LENGTHS = ("sharegpt", "alpaca", "long", "short")
RATES = 4.0, 50.0
"""Least and most requests per second of all models together."""
TURNS = (0.5, 1.0, 2.0, 5.0)
REQUESTS = 500
FIGURES = {
    "tokens/s": "output_throughput",
    "E2E mean": "mean_e2el_ms",
    "E2E P99": "p99_e2el_ms",
    "TTFT P99": "p99_ttft_ms",
    "TPOT P99": "p99_tpot_ms",
    "ITL P99": "p99_itl_ms",
}
HEAD = f"| world | | {' | '.join(FIGURES)} | |\n|---|---|{'---:|' * len(FIGURES)}---|"
LEAST_TOKENS, MOST_E2E = 0.98, 1.05
"""Bounds of harm: least tokens/s and most end-to-end time, as parts of `pooled`'s."""

World = dict[str, Any]
Ratios = dict[str, float]


def draw(number: int, rates: tuple[float, float] = RATES) -> World:
    """Draw the world of a number; its models may be too large for its machine."""
    rng = random.Random(number)
    count = rng.choice((2, 2, 3, 4))
    parts = [rng.uniform(0.5, 1.5) for _ in range(count)]
    total = rng.uniform(*rates)
    weights = [rng.uniform(0.1, 1.0) for _ in range(count)]
    temporal = rng.random() < 0.6
    sharing: World = {"mode": "temporal" if temporal else "spatial"}
    if temporal:
        sharing |= {"turn_s": rng.choice(TURNS), "drain": rng.random() < 0.4}
    common = rng.choice(LENGTHS)
    mixed = rng.random() < 0.4
    tenants = [
        {
            "name": f"t{i}",
            "model": rng.choice(MODELS),
            "share": round(98 * part / sum(parts), 1),
            "rate": round(total * weight / sum(weights), 2),
            "lengths": rng.choice(LENGTHS) if mixed else common,
        }
        for i, (part, weight) in enumerate(zip(parts, weights, strict=True))
    ]
    return {
        "title": f"world {number}",
        "hardware": rng.choice(MACHINES),
        "tenants": tenants,
        "sharing": sharing,
        "limits": {"max_model_len": 2048},
        "workload": {
            "arrivals": rng.choice(("bursty", "poisson")),
            "requests": REQUESTS,
            "lengths": common,
        },
        "policies": ["mirage"],
    }


def drawn(first: int) -> Iterator[World]:
    """Worlds whose models fit, from number `first` on, for ever."""
    number = first
    while True:
        world = draw(number)
        number += 1
        try:
            Setup(Experiment.model_validate(world))
        except ConfigError:
            continue
        yield world


def ratios(world: World, seed: int) -> Ratios:
    """`mirage`'s figures over `pooled`'s, by the names of `FIGURES`."""
    setup = ablations.setup(world)
    ours, pooled = (run(setup, name, seed) for name in ("mirage", "pooled"))
    return {name: ours[key] / pooled[key] for name, key in FIGURES.items()}


def harmed(found: Ratios) -> bool:
    """True if `mirage` harms the world: a figure is worse than `pooled`'s by more than its
    bound.
    """
    slower = max(found["E2E mean"], found["E2E P99"]) > MOST_E2E
    return found["tokens/s"] < LEAST_TOKENS or slower


def about(world: World) -> str:
    """Short text on a world, as ``h100, 3 models, turns of 2 s, 30/s``."""
    sharing = world["sharing"]
    how = "at once"
    if sharing["mode"] == "temporal":
        drains = ", drained" if sharing.get("drain") else ""
        how = f"turns of {sharing['turn_s']:g} s{drains}"
    rate = sum(tenant["rate"] for tenant in world["tenants"])
    return f"{world['hardware']}, {len(world['tenants'])} models, {how}, {rate:.0f}/s"


def row(title: str, about: str, found: Ratios) -> str:
    """One row of the table under `HEAD`."""
    cells = " | ".join(f"{found[name]:.2f}" for name in FIGURES)
    return f"| {title} | {about} | {cells} | {'harm' if harmed(found) else ''} |"


def main() -> None:
    asked = arguments()
    worlds = [yaml.safe_load(file.read_text()) for file in asked.files]
    source = iter(worlds) if worlds else drawn(asked.first)
    count = len(worlds) or asked.worlds
    print(HEAD)
    every: list[Ratios] = []
    for world, _ in zip(source, range(count), strict=False):
        found = ratios(world, asked.seed)
        every.append(found)
        print(row(world["title"], about(world), found), flush=True)
        if harmed(found):
            keep(world, asked.output)
    summary(every)


def keep(world: World, folder: Path) -> None:
    """Write a world to a file of its own, for one that is harmed."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{world['title'].replace(' ', '-')}.yaml"
    file.write_text(yaml.safe_dump(world, sort_keys=False))


def summary(every: list[Ratios]) -> None:
    """Print the number of harmed worlds, and the ends and quartiles of each figure."""
    print(f"\n{sum(map(harmed, every))} of {len(every)} worlds are harmed")
    for name in FIGURES:
        values = sorted(found[name] for found in every)
        quarters = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        middle = ", ".join(f"{quarter:.2f}" for quarter in quarters)
        print(f"{name}: least {values[0]:.2f}, quarters {middle}, most {values[-1]:.2f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    parser.add_argument("--worlds", type=int, default=40, help="how many are drawn")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=7, help="of what happens in a world")
    parser.add_argument("--output", type=Path, default=Path("out/worlds"), metavar="DIR")
    return parser.parse_args()


if __name__ == "__main__":
    main()
