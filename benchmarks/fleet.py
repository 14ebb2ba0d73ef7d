"""Speed of the simulator of many devices: processor time of an hour of arrivals.

    .venv/bin/python -m benchmarks.fleet [--devices 64] [--seconds 3600] [--rate 4]

Models are popular by Zipf's law. The most popular ones have replicas, so that a router decides
about most requests; each device has up to three models. It prints requests, simulated seconds and
processor seconds of one core.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import resource
import time
from math import ceil
from typing import Any

from mirage.simulate.fleet.fleet import Fleet
from mirage.simulate.fleet.run import run_fleet
from mirage.simulate.fleet.schema import FleetExperiment
from mirage.simulate.fleet.setup import FleetSetup

KINDS = ("llama-3-8b", "llama-3-8b", "qwen2.5-7b", "llama-2-13b")
PLACES = 3
"""Most models that are placed on one device."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--models", type=int, default=0, help="as many as devices if left out")
    parser.add_argument("--seconds", type=float, default=3600, help="of arrivals")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second and device")
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--policy", default="mirage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="calls that take the longest")
    options = parser.parse_args()
    setup = FleetSetup(experiment(options))
    profiler = cProfile.Profile() if options.profile else None
    begin = time.process_time()
    fleets: list[Fleet] = []
    if profiler:
        profiler.enable()
    figures = run_fleet(setup, options.policy, options.seed, begun=fleets.append)
    if profiler:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(35)
    spent = time.process_time() - begin
    said(setup, figures, fleets[0], spent)


def experiment(options: argparse.Namespace) -> FleetExperiment:
    """An experiment with models by Zipf's law on equal devices; the most popular ones are on
    several.
    """
    rng = random.Random(f"fleet {options.seed}")
    count = options.models or options.devices
    weights = [1 / (place + 1) ** 0.9 for place in range(count)]
    total = options.rate * options.devices
    rates = [total * weight / sum(weights) for weight in weights]
    tenants = [
        {"name": f"m{i:03}", "model": rng.choice(KINDS), "rate": rate}
        for i, rate in enumerate(rates)
    ]
    devices = [f"d{i:03}" for i in range(options.devices)]
    return FleetExperiment.model_validate(
        {
            "title": "fleet",
            "hardware": options.hardware,
            "devices": devices,
            "placement": placed(tenants, devices, options.rate),
            "tenants": tenants,
            "limits": {"max_model_len": 2048},
            "workload": {"arrivals": "poisson", "requests": round(total * options.seconds)},
        }
    )


def placed(tenants: list[dict[str, Any]], devices: list[str], rate: float) -> dict[str, list[str]]:
    """Placement on devices: each model has so many replicas that each gets at most half of a
    device's request rate, on the devices with the least load that have fewer than `PLACES` models.
    """
    asked, models = dict.fromkeys(devices, 0.0), dict.fromkeys(devices, 0)
    placement: dict[str, list[str]] = {}
    for tenant in tenants:
        replicas = min(len(devices), ceil(tenant["rate"] / (0.5 * rate)))
        free = sorted((d for d in devices if models[d] < PLACES), key=lambda d: (asked[d], d))
        placement[tenant["name"]] = free[:replicas]
        for device in free[:replicas]:
            asked[device] += tenant["rate"] / replicas
            models[device] += 1
    return placement


def said(setup: FleetSetup, figures: dict[str, Any], fleet: Fleet, spent: float) -> None:
    """Print what was simulated, and how many requests per second of processor time."""
    asked = setup.experiment.workload.requests or 0
    replicas = sum(map(len, setup.placement.values()))
    routed = sum(len(places) > 1 for places in setup.placement.values())
    print(
        f"{len(fleet.devices)} devices, {len(setup.placement)} models ({routed} with replicas), "
        f"{replicas} engines, {figures['policy']}"
    )
    print(
        f"{asked:,} requests, {figures['duration']:,.0f} simulated s, {spent:.1f} processor s: "
        f"{asked / spent:,.0f} requests a second"
    )
    print(
        f"{figures['steps']:,} steps, {figures['moves']:,} moves, "
        f"{figures['preemptions']:,} preemptions, {figures['lost']} lost, "
        f"TTFT P99 {figures['p99_ttft_ms']:,.0f} ms, TPOT P99 {figures['p99_tpot_ms']:.1f} ms, "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB"
    )


if __name__ == "__main__":
    main()
