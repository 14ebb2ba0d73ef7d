"""Roster compared with other ways to serve more models than fit, in random worlds.

    .venv/bin/python -m benchmarks.roster [--worlds 20] [--seed 0] [--ways A,B] [FILE ...]

A world is a machine, 5 to 50 models whose popularity falls by Zipf's law, and their load. Each way
serves the same requests:

- `roster`: models sleep by giving their layers away;
- `swap-models`: one process ends and another starts, from host memory, in the time that a start
  takes here. A process with running requests ends after `busy_s`, or after the time that its own
  way out and back takes; a model that comes leaves nothing free for others;
- `swap-long`: the same by the roster's rules, which give a model turns of a minute;
- `sleep`: all weights are copied out and in, as by vLLM's sleep level 1;
- `subset`: the most popular models that fit are served, and no others.

In all ways policy mirage moves memory between the models that are awake. The program prints each
world, the means of `roster` over each other way with 95 % intervals, and the worst worlds with the
words that repeat them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import exp, inf, log
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.roster_worlds import OURS, WAYS, Figures, World, about, drawn, served
from mirage.tools.report import intervals
from mirage.tools.simulate.command import parse_seeds

LEAST = 0.98
"""Ratio of the roster's tokens a second, or requests within limits, to another way's, under which
the roster counts as worse."""
WORST = 10
FIRST_OF_SEED = 1_000_000
"""Number of the first world that a seed draws, divided by the seed."""
HEAD = (
    "| world | way | tokens/s | TTFT P50 s | TTFT P99 s | within limits |\n"
    "|---|---|---:|---:|---:|---:|"
)


class WorldServed(NamedTuple):
    """One world, and its figures by each way of serving it."""

    title: str
    again: str
    """Arguments of the program that repeat this world."""
    found: Mapping[str, Figures]


def row(title: str, way: str, f: Figures) -> str:
    """One row of the table under `HEAD`."""
    times = f"{f.ttft_p50_ms / 1e3:.2f} | {f.ttft_p99_ms / 1e3:.2f}"
    return f"| {title} | {way} | {f.tokens_s:.0f} | {times} | {f.within:.3f} |"


def ratio(ours: float, other: float) -> float:
    """Quotient of our figure and the other's: 1 if both are zero, infinity if only
    the other's is.
    """
    return ours / other if other else 1.0 if not ours else float("inf")


def summary(every: Sequence[WorldServed]) -> dict[str, dict[str, object]]:
    """Print and return how the roster compares with each other way, and where it does worst."""
    others = [name for name in every[0].found if name != OURS]
    return {way: _beside(way, every) for way in others}


def _beside(way: str, every: Sequence[WorldServed]) -> dict[str, object]:
    pairs = [(one.found[OURS], one.found[way]) for one in every]
    means = {}
    for name in ("tokens_s", "ttft_p50_ms", "ttft_p99_ms"):
        logs = [log(getattr(a, name) / getattr(b, name)) for a, b in pairs]
        means[name] = [exp(end) for end in bounds(logs)]
    points = bounds([100 * (a.within - b.within) for a, b in pairs])
    tokens = [ratio(a.tokens_s, b.tokens_s) for a, b in pairs]
    within = [ratio(a.within, b.within) for a, b in pairs]
    counts = {
        "tokens_under": sum(r < LEAST for r in tokens),
        "within_under": sum(r < LEAST for r in within),
        "within_twice": sum(r >= 2 for r in within),
    }
    told = ", ".join(f"{name} {_told(ends)}" for name, ends in means.items())
    print(f"{OURS} over {way}: {told}, within limits {_told(points, '+.1f')} points")
    print(
        f"  of {len(every)}: tokens/s under {LEAST} in {counts['tokens_under']}, requests within "
        f"limits under {LEAST} in {counts['within_under']} and at least twice in "
        f"{counts['within_twice']}"
    )
    for number in sorted(range(len(every)), key=tokens.__getitem__)[:WORST]:
        print(
            f"  worst: tokens/s {tokens[number]:.3f}, within {within[number]:.2f} times: "
            f"{every[number].title}: {every[number].again}"
        )
    return {**means, "within_points": points, **counts, "least_tokens": min(tokens)}


def bounds(values: Sequence[float]) -> list[float]:
    """Mean and the ends of its 95 % interval; the mean three times for a single value."""
    found = intervals.mean(values)
    half = found.half or 0.0
    return [found.value, found.value - half, found.value + half]


def _told(ends: Sequence[float], form: str = ".3f") -> str:
    mean, low, high = (format(end, form) for end in ends)
    return f"{mean} ({low} to {high})"


def simulated(ways: Sequence[str], asked: tuple[World, str, int]) -> WorldServed:
    """Simulate a world by each of `ways` (`benchmarks.roster_worlds.WAYS`); returns the figures,
    with the arguments that repeat the world."""
    world, again, seed = asked
    title = f"{world['title']}, seed {seed} ({about(world)})"
    return WorldServed(title, again, {way: served(world, way, seed) for way in ways})


def worlds(asked: argparse.Namespace) -> Iterator[tuple[World, str, int]]:
    """Worlds to simulate, from files or drawn, once for each seed: world, arguments that repeat it,
    and seed.
    """
    named = ((yaml.safe_load(file.read_text()), str(file)) for file in asked.files)
    first = FIRST_OF_SEED * asked.seed if asked.first is None else asked.first
    trace = f" --trace {asked.trace}" if asked.trace else ""
    more = f"--worlds 1 --requests {asked.requests}{trace}"
    found = (
        (world, f"--first {world['title'].split()[-1]} {more}")
        for world in drawn(first, asked.requests, asked.trace)
    )
    for world, again in named if asked.files else islice(found, asked.worlds):
        for seed in asked.seeds:
            yield world, f"{again} --seeds {seed}", seed


def main() -> None:
    asked = arguments()
    started, every = time.monotonic(), list[WorldServed]()
    print(HEAD)
    with Pool(asked.jobs) as pool:
        work = partial(simulated, asked.ways)
        try:
            for one in pool.imap(work, worlds(asked)):
                every.append(one)
                for way, figures in one.found.items():
                    print(row(one.title, way, figures))
                print(f"{len(every)} in {time.monotonic() - started:.0f} s", flush=True)
                if time.monotonic() - started >= 60 * asked.minutes:
                    break
        except KeyboardInterrupt:
            print("\ninterrupted: what follows is of the worlds until then")
    print()
    told = summary(every)
    if asked.json is not None:
        found = [{**one._asdict(), "found": _figures(one)} for one in every]
        asked.json.write_text(json.dumps({"worlds": found, "summary": told}, indent=1))


def _figures(one: WorldServed) -> dict[str, dict[str, float]]:
    return {way: figures._asdict() for way, figures in one.found.items()}


def _ways(word: str) -> list[str]:
    names = [OURS, *(name for name in word.split(",") if name != OURS)]
    if unknown := [name for name in names if name not in WAYS]:
        raise argparse.ArgumentTypeError(f"no way {unknown[0]!r}: use {', '.join(WAYS)}")
    return names


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    parser.add_argument("--worlds", type=int, default=20, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=0, help="of the worlds that are drawn")
    parser.add_argument("--first", type=int, help="number of the first one instead")
    parser.add_argument("--seeds", type=parse_seeds, default=[0], help="of requests: 0-4, 3, 0,2,7")
    parser.add_argument("--requests", type=int, default=300, help="of each drawn world")
    parser.add_argument("--trace", type=Path, help="file with arrivals and lengths of all models")
    parser.add_argument("--ways", type=_ways, default=list(WAYS), help="as swap-models,sleep")
    parser.add_argument("--minutes", type=float, default=inf, help="begin none after so many")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one core each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
