"""vLLM itself with two models the size of OPT-13b, where it is installed: ``gpu-serve``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Row, Skipped

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "gpu.yaml"
MODELS = ROOT / "out" / "models"
OUTPUT = ROOT / "out" / "gpu"
TRACE = "MIRAGE_TRACE"
"""A file in Azure's format; without, the bundled sample."""
POLICIES = ("static", "pooled", "mirage")
KEYS = {
    "preemptions": "preemptions",
    "output_throughput": "output tokens per s",
    "p99_ttft_ms": "TTFT P99, ms",
    "p99_tpot_ms": "TPOT P99, ms",
    "layers_remapped_max": "layers remapped, most",
}


def eagerly(bench: Bench) -> list[Row]:
    """Static, pooled and mirage on a trace; a row for each figure."""
    return _served(bench, CONFIG)


def with_graphs(bench: Bench) -> list[Row]:
    """The same with CUDA graphs: whole, and in pieces while layers stream."""
    return _served(bench, CONFIG.with_name("gpu-graphs.yaml"))


def _served(bench: Bench, config: Path) -> list[Row]:
    bench.need_kernels()
    if find_spec("vllm") is None:
        raise Skipped("vLLM is not installed")
    from benchmarks.gpu import dummies  # with vLLM come tokenizers

    for name in ("opt-13b-chat", "opt-13b-code"):
        dummies.hollow(MODELS / name)
    trace, output = os.environ.get(TRACE, "sample"), OUTPUT / config.stem
    replay = [sys.executable, "-m", "mirage", "replay", str(config), "--trace", trace]
    replay += ["--policy", ",".join(POLICIES), "--output", str(output)]
    done = subprocess.run(replay, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"mirage replay ended with {done.returncode}")
    report = json.loads((output / "report.json").read_text(encoding="utf-8"))
    return [texts(report), *rows({run["policy"]: run for run in report["runs"]}, trace)]


def texts(report: dict[str, Any]) -> Row:
    """Of a report of `mirage replay`."""
    different = int(report["outputs_different"])
    return Row(
        "served, texts",
        "two OPT-13b: requests whose text is another under another policy",
        str(different),
        "0",
        different == 0,
    )


def rows(runs: dict[str, dict[str, Any]], trace: str) -> list[Row]:
    """One for each figure, of the runs in a report of `mirage replay`, by policy."""
    return [_row(runs, trace, key, title) for key, title in KEYS.items()]


def _row(runs: dict[str, dict[str, Any]], trace: str, key: str, title: str) -> Row:
    values = {policy: run[key] for policy, run in runs.items()}
    shown = ", ".join(f"{policy} {value:,.1f}" for policy, value in values.items())
    return Row(f"served, {title}", f"two OPT-13b, {trace}: {title}", shown, details=values)
