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
"""A file in Azure's format; without, the bundled sample."""
SHORT = {"sample": ("--window", "0:600", "--time-scale", "0.05")}
OTHERWISE = ("--window", "0:30")
"""Thirty seconds of arrivals either way: the sample's come slowly."""
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
    """Static, pooled and mirage on a trace; a row for each policy, as soon as it has run."""
    return _served(bench, CONFIG)


def with_graphs(bench: Bench) -> Iterator[Row]:
    """The same with CUDA graphs of steps that are not compiled."""
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
    """Run `mirage replay`; a row for each policy in its report, as they come, then the texts'.

    Raises `RuntimeError` if it fails or is not done in time; what it had found is there by then.
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
    """As far as it has been written."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {"runs": []}


def _end(child: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C would, so that its server ends too."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def texts(report: dict[str, Any]) -> Row:
    """Row on the texts in a report of `mirage replay`."""
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
