"""Speed of the simulator: requests a second of one core, and the cost of a step.

    .venv/bin/python -m benchmarks.simulator [--azure DIR] [--rows N]

`--azure` names a folder with Azure's two files of 2023, which are then simulated whole; `--rows`
writes a trace of so many rows into a temporary folder and streams it, printing peak memory.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.claims import scenes
from mirage.simulate.batch import Batch, SimulatedRequest
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.run import run

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--azure", type=Path, help="folder with Azure's files of 2023")
    parser.add_argument("--rows", type=int, default=0, help="rows of a trace to stream")
    options = parser.parse_args()
    saturation()
    steps()
    if options.azure:
        for path in sorted(options.azure.glob("AzureLLMInferenceTrace_*.csv")):
            whole(path)
    if options.rows:
        stream(options.rows)


def saturation() -> None:
    """Simulate C1 at 6 requests a second and model: 1,800 requests."""
    setup = scenes.setups()["c1-6"]
    policies = ("static", "pooled", "mirage")
    seconds: dict[str, list[float]] = {policy: [] for policy in policies}
    for _ in range(ROUNDS):
        for policy in policies:
            seconds[policy].append(timed(lambda policy=policy: run(setup, policy, 0)))
    for policy in policies:
        rate = 1800 / statistics.median(seconds[policy])
        print(f"saturated C1, {policy:7}: {rate:8,.0f} requests a second")


def steps() -> None:
    """Print the processor time that the simulator takes for a decode step of 8, 64 and 512
    requests.
    """
    for size in (8, 64, 512):
        batch = Batch(16)
        for number in range(size):
            batch.join(SimulatedRequest(number, 0, 100 + number, 10**9, 0, computed=100 + number))
        spent = timed(lambda batch=batch: [batch.advance(1) for _ in range(20_000)])
        print(f"one step with {size:3} running requests: {spent / 20_000 * 1e6:5.2f} us")


def whole(path: Path) -> None:
    """Simulate one of Azure's files from its first row to its last."""
    setup = one_model({"arrivals": "trace", "file": path})
    for policy in ("static", "mirage"):
        made: list[dict[str, Any]] = []
        spent = timed(lambda p=policy, made=made: made.append(run(setup, p, 0)))
        done = made[0]["completed"]
        print(
            f"{path.name}, {policy}: {done:,} requests in {spent:.1f} s, "
            f"{done / spent:,.0f} a second"
        )


def stream(rows: int) -> None:
    """Simulate a trace that is never held in memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.csv"
        with path.open("w", encoding="utf-8") as file:
            file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
            for row in range(rows):
                day, second = divmod(row // 28, 86_400)
                hour, minute = second // 3600, second // 60 % 60
                stamp = f"2024-05-{10 + day:02} {hour:02}:{minute:02}:{second % 60:02}"
                file.write(f"{stamp}.{row % 28 * 35714:06}+00:00,{200 + row % 97},{8 + row % 31}\n")
        setup = one_model({"arrivals": "trace", "file": path})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        spent = timed(lambda: run(setup, "static", 0))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        size = path.stat().st_size / 2**20
    print(
        f"{rows:,} rows, {size:,.0f} MiB: {spent:.0f} s, {rows / spent:,.0f} a second, "
        f"{(peak - before) / 1024:.0f} MiB more memory"
    )


def one_model(workload: dict[str, Any]) -> Setup:
    """Set-up of Llama-3-8b alone on a GH200, with 90 % of its memory."""
    return Setup(
        Experiment.model_validate(
            {
                "title": "a whole trace",
                "tenants": [{"name": "llama", "model": "llama-3-8b", "share": 90}],
                "workload": workload,
            }
        )
    )


def timed(call: Callable[[], object]) -> float:
    """Call a function; returns the processor seconds that it took."""
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    main()
