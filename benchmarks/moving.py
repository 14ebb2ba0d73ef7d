"""Models that move between simulated devices, compared with the same models that never move.

    .venv/bin/python -m benchmarks.moving [--seeds 5] [--seconds 600] [--worlds drift,constant,...]
    .venv/bin/python -m benchmarks.moving --worlds popularity --seconds 3600 --rate 6 --first 100

Eight models are on three devices, placed by their mean rates. In each world and seed the same
requests are served in three ways: `never` moves no model, `simulation` moves one if the simulator's
core finds that it pays, and `arithmetic` if the roofline judge does. The program prints the points
of requests within limits over `never`, as a mean with its 95 % interval, and the bytes and steps of
moves. In `popularity` requests have the bursts and lengths of the sample trace, and the models'
popularity changes six times.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping
from typing import Any

from mirage.control.placement.steps import MoveVerb
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.fleet.device import DeviceObserver, PlacedDevice
from mirage.simulate.fleet.fleet import Fleet, FleetObserver
from mirage.simulate.fleet.judging import LatencyLimits
from mirage.simulate.fleet.schema import FleetExperiment
from mirage.simulate.fleet.setup import FleetSetup
from mirage.simulate.roofline import PS
from mirage.simulate.variants import VARIANTS
from mirage.simulate.workload import requests
from mirage.simulate.world import World
from mirage.tools.report.intervals import mean
from traces import SAMPLE

KINDS = ("llama-3-8b", "qwen2.5-7b", "llama-2-13b")
WAYS: Mapping[str, dict[str, Any] | None] = {
    "never": None,
    "simulation": {"judge": "simulation"},
    "arithmetic": {"judge": "arithmetic"},
}
WORLDS = ("constant", "drift", "crowded", "lost", "popularity")
PHASES = 6
"""Parts of a run of `popularity`, of which each has popularities of its own."""
TTFT_S, TPOT_S = 1.0, 0.05
POISSON = {"arrivals": "poisson"}
SAMPLED = {"arrivals": "windows", "file": SAMPLE, "lengths": "trace"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--ways", default=",".join(WAYS), help="never has to be among them")
    parser.add_argument("--seconds", type=float, default=600.0, help="of arrivals")
    parser.add_argument("--rate", type=float, default=60.0, help="requests a second, all together")
    parser.add_argument("--worlds", default=",".join(WORLDS))
    options = parser.parse_args()
    ways = {way: WAYS[way] for way in options.ways.split(",")}
    for world in options.worlds.split(","):
        parts: dict[str, list[float]] = {way: [] for way in ways}
        for seed in range(options.first, options.first + options.seeds):
            for way, moving in ways.items():
                setup = FleetSetup(experiment(world, moving, options.seconds, options.rate))
                asked = changing(setup, options.seconds, seed) if world == "popularity" else None
                part, fleet = served(setup, seed, asked)
                parts[way].append(part)
                lost = sum(causes.total() for causes in fleet.lost.values())
                print(
                    f"{world} seed {seed} {way}: {part:.2%} within, {lost} lost{moved(fleet)}",
                    flush=True,
                )
        for way in [way for way in ways if way != "never"]:
            gains = [100 * (a - b) for a, b in zip(parts[way], parts["never"], strict=True)]
            over = mean(gains)
            half = "" if over.half is None else f" ± {over.half:.2f}"
            print(f"{world}: {way} over never {over.value:+.2f}{half} points", flush=True)


def experiment(
    world: str, moving: dict[str, Any] | None, seconds: float, rate: float
) -> FleetExperiment:
    """Experiment of one of `WORLDS`: constant loads, loads that change at half time, all models on
    one device at first, a device that is lost for a while, or the bursts of the sample trace.
    """
    weights = [1 / (place + 1) for place in range(8)]
    tenants: list[dict[str, Any]] = []
    for place, weight in enumerate(weights):
        one = {"name": f"m{place}", "model": KINDS[place % 3], "rate": rate * weight / sum(weights)}
        if world == "drift":  # those of one device in the first half, the others in the second
            one["rate"] *= 2
            if place % 3 == 0:
                one["silence"] = {"from_s": 0.0, "for_s": seconds / 2}
        tenants.append(one)
    total = sum(one["rate"] for one in tenants) * (0.5 if world == "drift" else 1.0)
    spread = {f"m{place}": [f"gpu-{place % 3}"] for place in range(8)}
    first = {f"m{place}": ["gpu-0"] for place in range(8)}
    lost = [{"at_s": seconds / 4, "back_s": seconds / 2}] if world == "lost" else []
    rules = {"decide_s": 30, "window_s": 60, "windows": 2, "evaluations": 24}
    if world == "popularity":
        rules |= {"decide_s": 60, "window_s": 120}
    limits = {"ttft_s": TTFT_S, "tpot_s": TPOT_S}
    number = {"requests": round(total * seconds)}
    return FleetExperiment.model_validate(
        {
            "title": world,
            "hardware": "h100",
            "devices": [{"name": "gpu-0", "lost": lost}, "gpu-1", "gpu-2"],
            "placement": first if world == "crowded" else spread,
            "tenants": tenants,
            "limits": {"max_model_len": 2048},
            "workload": SAMPLED | number if world == "popularity" else POISSON | number,
            "roster": {},
            "moving": None if moving is None else moving | rules | limits,
        }
    )


def changing(setup: FleetSetup, seconds: float, seed: int) -> dict[str, list[SimulatedRequest]]:
    """Requests of each model; for each of `PHASES` the same rates are dealt to the models anew."""
    experiment, dealer = setup.experiment, random.Random(f"popularity {seed}")
    found: dict[str, list[SimulatedRequest]] = {tenant.name: [] for tenant in experiment.tenants}
    rates = [tenant.rate for tenant in experiment.tenants]
    total = sum(rate or 0.0 for rate in rates)
    for phase in range(PHASES):
        dealer.shuffle(rates)
        tenants = [
            tenant.model_copy(update={"rate": rate})
            for tenant, rate in zip(experiment.tenants, rates, strict=True)
        ]
        count = {"requests": round(total * seconds / PHASES)}
        workload = experiment.workload.model_copy(update=count)
        part = experiment.model_copy(update={"tenants": tenants, "workload": workload})
        begin = round(phase * seconds / PHASES * PS)
        for name, each in requests(FleetSetup(part), seed * PHASES + phase).items():
            found[name] += [
                SimulatedRequest(len(found[name]) + n, begin + one.arrival, one.prompt, one.output)
                for n, one in enumerate(each)
            ]
    return {name: sorted(each, key=lambda one: one.arrival) for name, each in found.items()}


class Within(FleetObserver):
    """Observer of a fleet that counts the requests within limits."""

    def __init__(self) -> None:
        self.limits, self.kept = LatencyLimits.of_seconds(TTFT_S, TPOT_S), 0

    def of(self, device: PlacedDevice, world: World) -> DeviceObserver:
        return WithinDevice(device, world, self)


class WithinDevice(DeviceObserver):
    """Observer of a device that adds each finished request to `Within`."""

    def __init__(self, device: PlacedDevice, world: World, seen: Within) -> None:
        super().__init__(device, world)
        self._seen = seen

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        super().finished(engine, request)
        self._seen.kept += self._seen.limits.kept(request, self.world.now)


def served(
    setup: FleetSetup, seed: int, asked: Mapping[str, list[SimulatedRequest]] | None = None
) -> tuple[float, Fleet]:
    """Simulate the fleet; returns the part of all requests that are within limits, and the fleet.

    Lost requests count as not within. The requests of each model are `asked`, or drawn by the seed
    if that is left out.
    """
    seen = Within()
    arrivals = None if asked is None else {name: iter(each) for name, each in asked.items()}
    fleet = Fleet(setup, VARIANTS["mirage"], seed, observer=seen, arrivals=arrivals)
    fleet.run()
    fleet.check()
    count = setup.experiment.workload.requests if asked is None else sum(map(len, asked.values()))
    assert count is not None
    return seen.kept / count, fleet


def moved(fleet: Fleet) -> str:
    """Starts, stops and GiB loaded by the fleet's mover, as text; empty for a fleet
    without moves.
    """
    if fleet.mover is None:
        return ""
    starts, stops = (fleet.mover.done[verb] for verb in (MoveVerb.START, MoveVerb.STOP))
    return f", {starts} starts, {stops} stops, {fleet.mover.loaded / 2**30:.0f} GiB"


if __name__ == "__main__":
    main()
