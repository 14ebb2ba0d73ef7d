"""Models that move between simulated devices, against the same that never do.

    .venv/bin/python -m benchmarks.moving [--seeds 5] [--seconds 600] [--worlds drift,constant,...]

Eight models on three devices, placed by their mean rates. Of each world and seed the same requests
are served by three ways: `never` moves, `simulation` moves where the simulator's core finds that it
pays, `arithmetic` where the roofline judge does. It prints points of requests within limits over
`never`, as a mean with its interval at 95 %, and what was moved.
"""

from __future__ import annotations

import argparse
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
from mirage.simulate.variants import VARIANTS
from mirage.simulate.world import World
from mirage.tools.report.intervals import mean

KINDS = ("llama-3-8b", "qwen2.5-7b", "llama-2-13b")
WAYS: Mapping[str, dict[str, Any] | None] = {
    "never": None,
    "simulation": {"judge": "simulation"},
    "arithmetic": {"judge": "arithmetic"},
}
WORLDS = ("constant", "drift", "crowded", "lost")
TTFT_S, TPOT_S = 1.0, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=600.0, help="of arrivals")
    parser.add_argument("--rate", type=float, default=60.0, help="requests a second, all together")
    parser.add_argument("--worlds", default=",".join(WORLDS))
    options = parser.parse_args()
    for world in options.worlds.split(","):
        parts: dict[str, list[float]] = {way: [] for way in WAYS}
        for seed in range(options.seeds):
            for way, moving in WAYS.items():
                setup = FleetSetup(experiment(world, moving, options.seconds, options.rate))
                part, fleet = served(setup, seed)
                parts[way].append(part)
                lost = sum(causes.total() for causes in fleet.lost.values())
                print(
                    f"{world} seed {seed} {way}: {part:.2%} within, {lost} lost{moved(fleet)}",
                    flush=True,
                )
        for way in list(WAYS)[1:]:
            gains = [100 * (a - b) for a, b in zip(parts[way], parts["never"], strict=True)]
            over = mean(gains)
            half = "" if over.half is None else f" ± {over.half:.2f}"
            print(f"{world}: {way} over never {over.value:+.2f}{half} points", flush=True)


def experiment(
    world: str, moving: dict[str, Any] | None, seconds: float, rate: float
) -> FleetExperiment:
    """One of `WORLDS`: loads that stay, that change at half time, all on one device, or a loss."""
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
    limits = {"ttft_s": TTFT_S, "tpot_s": TPOT_S}
    return FleetExperiment.model_validate(
        {
            "title": world,
            "hardware": "h100",
            "devices": [{"name": "gpu-0", "lost": lost}, "gpu-1", "gpu-2"],
            "placement": first if world == "crowded" else spread,
            "tenants": tenants,
            "limits": {"max_model_len": 2048},
            "workload": {"arrivals": "poisson", "requests": round(total * seconds)},
            "roster": {},
            "moving": None if moving is None else moving | rules | limits,
        }
    )


class Within(FleetObserver):
    """Counts requests within limits."""

    def __init__(self) -> None:
        self.limits, self.kept = LatencyLimits.of_seconds(TTFT_S, TPOT_S), 0

    def of(self, device: PlacedDevice, world: World) -> DeviceObserver:
        return WithinDevice(device, world, self)


class WithinDevice(DeviceObserver):
    """Tells `Within` of each answer."""

    def __init__(self, device: PlacedDevice, world: World, seen: Within) -> None:
        super().__init__(device, world)
        self._seen = seen

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        super().finished(engine, request)
        self._seen.kept += self._seen.limits.kept(request, self.world.now)


def served(setup: FleetSetup, seed: int) -> tuple[float, Fleet]:
    """Part of all requests that are within limits, lost ones included, and the fleet."""
    seen = Within()
    fleet = Fleet(setup, VARIANTS["mirage"], seed, observer=seen)
    fleet.run()
    fleet.check()
    asked = setup.experiment.workload.requests
    assert asked is not None
    return seen.kept / asked, fleet


def moved(fleet: Fleet) -> str:
    """Words about what was moved; none for a fleet that does not."""
    if fleet.mover is None:
        return ""
    starts, stops = (fleet.mover.done[verb] for verb in (MoveVerb.START, MoveVerb.STOP))
    return f", {starts} starts, {stops} stops, {fleet.mover.loaded / 2**30:.0f} GiB"


if __name__ == "__main__":
    main()
