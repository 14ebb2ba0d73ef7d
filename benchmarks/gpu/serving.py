"""vLLM itself with two models the size of OPT-13b, where it is installed: ``gpu-serve``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import NO_LIMIT_S, Bench
from benchmarks.gpu.rows import Row, Skipped
from benchmarks.gpu.tied import tied

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "gpu.yaml"
MODELS = ROOT / "out" / "models"
OUTPUT = ROOT / "out" / "gpu"
TRACE = "MIRAGE_TRACE"
"""Environment variable that names a trace; without it the bundled sample is replayed."""
SHORT = {"sample": ("--window", "0:600", "--time-scale", "0.05")}
OTHERWISE = ("--window", "0:30")
"""Options of the replay for thirty seconds of arrivals: `SHORT` for the sample, whose requests come
slowly, `OTHERWISE` for any other trace.
"""
POLICIES = ("static", "pooled", "mirage")
KEYS = {
    "preemptions": "preemptions",
    "output_throughput": "output tokens per s",
    "p99_ttft_ms": "TTFT P99, ms",
    "p99_tpot_ms": "TPOT P99, ms",
    "layers_remapped_max": "layers remapped, most",
}
ENDING_S = 20.0
"""Seconds of the row's time that are kept for a server to end its engines."""
POLL_S = 1.0
INVARIANT = {"VLLM_BATCH_INVARIANT": "1"}
"""Has vLLM's kernels add in one order whatever the batch: batches differ by policy. Set it to 0 in
the environment if this vLLM cannot do it on this GPU."""


def compiled(bench: Bench) -> Iterator[Row]:
    """A row for each policy (static, pooled and mirage on a trace), as soon as it has run, and a
    row on the texts.
    """
    return _served(bench, CONFIG)


def with_graphs(bench: Bench) -> Iterator[Row]:
    """The same rows with CUDA graphs of steps that are not compiled."""
    return _served(bench, CONFIG.with_name("gpu-graphs.yaml"))


def _served(bench: Bench, config: Path) -> Iterator[Row]:
    bench.need_kernels()
    if find_spec("vllm") is None:
        raise Skipped("vLLM is not installed")
    from benchmarks.gpu import dummies  # with vLLM come tokenizers

    for name in ("opt-13b-chat", "opt-13b-code"):
        dummies.hollow(MODELS / name)
    trace, output = os.environ.get(TRACE, "sample"), OUTPUT / config.stem
    replay = [sys.executable, "-m", "mirage", "replay", str(config), "--trace", trace]
    replay += [*SHORT.get(trace, OTHERWISE), "--policy", ",".join(POLICIES)]
    limit_s = bench.share() - ENDING_S
    yield from followed([*replay, "--output", str(output)], output / "report.json", trace, limit_s)


def followed(
    command: list[str], file: Path, trace: str, limit_s: float = NO_LIMIT_S
) -> Generator[Row, None, None]:
    """Run `mirage replay` and give a row for each policy in its report as soon as it is there, then
    the row on texts.

    Raises `RuntimeError` if the command fails or is not done in time, after the rows that were
    there.
    """
    file.unlink(missing_ok=True)
    told = 0
    end = time.monotonic() + limit_s
    child = subprocess.Popen(tied(command), cwd=ROOT, env=INVARIANT | dict(os.environ))
    try:
        while True:
            ended = child.poll() is not None
            runs = _report(file)["runs"]
            yield from (row(run, trace) for run in runs[told:])
            told = len(runs)
            if ended:
                break
            if time.monotonic() > end:
                raise RuntimeError(f"mirage replay was not done after {limit_s:g} s")
            time.sleep(POLL_S)
    finally:
        _end(child)
    if child.returncode:
        raise RuntimeError(f"mirage replay ended with {child.returncode}")
    yield texts(_report(file))


def _report(file: Path) -> dict[str, Any]:
    """Content of the report as far as it is written; no runs if it is not there yet."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {"runs": []}


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the replay as Ctrl-C does, so that its server ends too."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def texts(report: dict[str, Any]) -> Row:
    """Row on the number of requests whose text differs between policies."""
    different = report["outputs_different"]
    return Row(
        "served, texts",
        "two OPT-13b: requests whose text is another under another policy",
        str(different),
        "0",
        different == 0,
    )


def row(run: dict[str, Any], trace: str) -> Row:
    """Row on one run in a report of `mirage replay`."""
    values = {title: run[key] for key, title in KEYS.items()}
    known = {title: value for title, value in values.items() if value is not None}
    shown = ", ".join(f"{title} {value:,.1f}" for title, value in known.items())
    policy = run["policy"]
    return Row(f"served, {policy}", f"two OPT-13b, {trace}, policy {policy}", shown, details=values)
