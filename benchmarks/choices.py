"""Open choices of the controller and ideas beyond the paper, each measured by simulation.

    .venv/bin/python -m benchmarks.choices [--seeds 0-1]

The program prints a table for each of four scenes, with a row for each variant of policy `mirage`,
and for comparison `static`, `pooled` and endless memory: output tokens a second, latencies,
preemptions, moves of memory, restored bytes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

import configs
from benchmarks.claims import scenes
from benchmarks.variants import KNOWN
from mirage.simulate.experiment import Setup
from mirage.tools.simulate.command import parse_seeds
from mirage.tools.simulate.pool import SimulationJob, run_all

SCENES = ("c1-3", "c1-6", "c2-1", "c2-3")
FIGURES = {
    "tokens/s": ("output_throughput", 1.0),
    "TTFT P99 s": ("p99_ttft_ms", 1e3),
    "TPOT P99": ("p99_tpot_ms", 1.0),
    "ITL P50": ("p50_itl_ms", 1.0),
    "ITL P99": ("p99_itl_ms", 1.0),
    "preempted": ("preemptions", 1.0),
    "moves": ("moves", 1.0),
    "restored GB": ("bytes_restored", 1e9),
}
RULES: dict[str, dict[str, Any]] = {
    "mirage": {},
    "growth only": {"serve": "growth"},
    "growth, lends 0 %": {"serve": "growth", "lend_percent": 0},
    "growth, lends 50 %": {"serve": "growth", "lend_percent": 50},
    "growth, lends 100 %": {"serve": "growth", "lend_percent": 100},
    "newcomers take all": {"keep_free": False},
    "tbt_ms 20": {"tbt_ms": 20.0},
    "tbt_ms 30": {"tbt_ms": 30.0},
    "tbt_ms 50": {"tbt_ms": 50.0},
    "no way back (uncapped)": {"decode_cap": False},
    "max_percent 75": {"max_percent": 75},
    "hysteresis 0.1 s": {"hysteresis_s": 0.1},
    "hysteresis 2 s": {"hysteresis_s": 2.0},
    "hysteresis 5 s": {"hysteresis_s": 5.0},
    "slack 64 extents": {"slack_extents": 64},
    "ask 0 steps ahead": {"lookahead_steps": 0},
    "ask 64 steps ahead": {"lookahead_steps": 64},
    "least recently used": {"victims": "lru"},
}
EXPERIMENT: dict[str, dict[str, Any]] = {
    "even sets, reshuffled": {"layer_sets": "even"},
    "nested, their own pipeline": {"pipeline": "layers"},
    "even, their own pipeline": {"layer_sets": "even", "pipeline": "layers"},
    "half layers": {"layer_parts": 2},
    "KV blocks scattered": {"kv_blocks": "scattered"},
    "reports every 20 ms": {"report_s": 0.02},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", default="0-1")
    seeds = parse_seeds(parser.parse_args().seeds)
    with tempfile.TemporaryDirectory() as folder:
        for scene in SCENES:
            compare(scene, list(variants(scene, Path(folder))), seeds)


def variants(scene: str, folder: Path) -> Iterator[tuple[str, Setup, str]]:
    """Rows of the table: label, setup, policy."""
    setup = scenes.setups()[scene]
    yield "static", setup, "static"
    yield "pooled", setup, "pooled"
    for label, rules in RULES.items():
        yield label, _ruled(setup, rules), "mirage"
    for label, update in EXPERIMENT.items():
        yield label, _with(setup, update), "mirage"
    yield "memory without end", _with(setup, {"hardware": _endless(folder)}), "static"


def compare(scene: str, rows: list[tuple[str, Setup, str]], seeds: list[int]) -> None:
    jobs = [SimulationJob(setup, policy, seed) for _, setup, policy in rows for seed in seeds]
    figures = run_all(jobs)
    print(f"\n| {scene} | " + " | ".join(FIGURES) + " |")
    print("|---|" + "---:|" * len(FIGURES))
    for number, (label, _, _) in enumerate(rows):
        runs = figures[number * len(seeds) : (number + 1) * len(seeds)]
        cells = [
            f"{sum(run[key] for run in runs) / len(runs) / divide:,.{1 if 'P' in name else 0}f}"
            for name, (key, divide) in FIGURES.items()
        ]
        print(f"| {label} | " + " | ".join(cells) + " |", flush=True)


def _ruled(setup: Setup, rules: dict[str, Any]) -> Setup:
    """The same setup, in which policy mirage has other settings or rules."""
    mirage = replace(KNOWN["mirage"], changes=rules)
    return Setup(setup.experiment, setup.near, known={**KNOWN, "mirage": mirage})


def _with(setup: Setup, update: dict[str, Any]) -> Setup:
    return Setup(setup.experiment.model_copy(update=update), setup.near, known=setup.known)


def _endless(folder: Path) -> str:
    """Path of the profile of a GH200 with twenty times the memory, as an upper bound of every
    policy.
    """
    path = folder / "endless.yaml"
    raw = yaml.safe_load((configs.HERE / "hardware" / "gh200.yaml").read_text())
    raw["memory_gib"] = {"value": 2000, "source": "no such machine"}
    path.write_text(yaml.safe_dump(raw))
    return str(path)


if __name__ == "__main__":
    main()
