"""One HTML page of each kind, made by its command; that of a replay from given runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import profile_answers as profiled
import yaml
from tune_case import write as write_question
from tune_case import write_trace

from mirage.config import load
from mirage.samples import Sample, TenantSample, TenantShape
from mirage.tools.profile.measuring import Measuring
from mirage.tools.profile.parts import Part, Parts
from mirage.tools.profile.plan import QUICK
from mirage.tools.replay import html, report
from mirage.tools.replay.client import Outcome
from mirage.tools.replay.run import PolicyRun
from mirage.tools.replay.timeline import RecordedTimeline
from mirage.tools.replay.trail import trail
from mirage.workload.dealing import TenantRequest

ROOT = Path(__file__).parents[2]
POLICIES = {"static": 3.0, "pooled": 2.0, "mirage": 1.0}
"""Factor of the made-up latencies, by policy: a larger factor means a slower policy."""


def all_pages(folder: Path) -> dict[str, Path]:
    """All HTML pages, by the command that makes each."""
    return {
        "replay": replayed(folder),
        "simulate": simulated(folder),
        "decode": decoded(folder),
        "tune": tuned(folder),
        "profile": profile(folder),
    }


def replayed(folder: Path) -> Path:
    """Report of a replay under three policies, with an error message as long as a
    server's may be.
    """
    setting = report.Setting("configs/demo.yaml", "a" * 80 + ".csv", (0.0, 60.0), 0.1, 0.2, 7, None)
    runs = [_run(policy, slow) for policy, slow in POLICIES.items()]
    path = folder / "report.html"
    provenance = report.ReplayProvenance(
        command="mirage replay configs/demo.yaml " + "--word x " * 20
    )
    path.write_text(html.render(report.build(setting, runs, provenance=provenance), runs))
    return path


def _run(policy: str, slow: float) -> PolicyRun:
    calls = [TenantRequest(n, n / 10, "ab"[n % 2], 10, 4, clipped=False) for n in range(40)]
    outcomes = [
        Outcome(
            call=call,
            sent_s=call.at_s,
            lag_s=0.002,
            ended_s=call.at_s + slow,
            ttft_s=0.1 * slow * (call.index + 1),
            e2el_s=0.1 * slow * (call.index + 1) + 0.09,
            itl_s=(0.01, 0.02, 0.06),
            prompt_tokens=10,
            output_tokens=4,
            output=trail("text"),
            error="HTTP 500: " + "x" * 90 if call.index == 7 else None,
        )
        for call in calls
    ]
    shape = TenantShape(layers=12, layer_bytes=1000, extent_bytes=100, extent_blocks=4)

    def sample(t: int) -> TenantSample:
        counted = {"preemptions": t, "bytes_streamed": 9 * t, "stall_s": float(t)}
        return TenantSample(20 + t, 10, t, 2, 3, 1, 50_000, **counted)

    samples = [Sample(float(t), {n: sample(t) for n in "ab"}) for t in range(5)]
    return PolicyRun(
        policy,
        calls,
        outcomes,
        8.0,
        RecordedTimeline(samples, 200_000, {"a": shape, "b": shape}, 1),
    )


def simulated(folder: Path) -> Path:
    tenants = [
        {"name": "large", "model": "opt-13b", "share": 35, "rate": 20},
        {"name": "small", "model": "opt-6.7b", "share": 20, "rate": 4},
    ]
    experiment = {"title": "Two models", "tenants": tenants, "workload": {"requests": 60}}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    _mirage(folder, "simulate", "experiment.yaml", "--seeds", "0-1", "--output", "simulated")
    return folder / "simulated" / "report.html"


def decoded(folder: Path) -> Path:
    batch = {"requests": 40, "size": 8, "turn_steps": 16, "turns": 60, "oversubscription": 2.5}
    tiers = {"host": {"bytes": "1GiB"}, "ssd": {"bytes": "10GiB"}}
    asked = {"title": "A batch", "model": "llama-3-8b", "decode": batch, "tiers": tiers}
    (folder / "batch.yaml").write_text(yaml.safe_dump(asked))
    _program(folder, "benchmarks.decode", "batch.yaml", "--seeds", "0-1", "--output", "decoded")
    return folder / "decoded" / "report.html"


def tuned(folder: Path) -> Path:
    write_question(folder)
    write_trace(folder)
    few = ("--trials", "8", "--processes", "1", "--profile", "h100", "--trace", "trace.csv")
    _mirage(folder, "tune", "c.yaml", *few, "--output", "tuned")
    return folder / "tuned" / "tune.html"


def profile(folder: Path) -> Path:
    """Page of `mirage profile` for a machine whose parts have been measured already, so that
    nothing is measured.
    """
    write_question(folder / "profiled")
    path, output = folder / "profiled" / "c.yaml", folder / "profiled" / "p.yaml"
    content = yaml.safe_load(path.read_text())
    content["device"] = {"memory": "640MiB"}
    path.write_text(yaml.safe_dump(content))
    measuring = Measuring(path, load(path), QUICK)
    keep_parts(measuring, output)
    _mirage(folder, "profile", str(path), "--quick", "--output", str(output))
    return output.with_suffix(".html")


def keep_parts(measuring: Measuring, output: Path, without: str = "") -> None:
    """Store all parts of a profile except `without`, as if they had just been measured."""
    names = [tenant.name for tenant in measuring.config.tenants]
    answers = {
        "transfers": profiled.transfers(),
        **{f"engine {name}": profiled.engine(profiled.model()) for name in names},
        "message": profiled.message(),
        "served": profiled.served(names),
    }
    assert sorted(answers) == sorted(measuring.names)
    parts = Parts(output.with_suffix(".parts"), measuring.key())
    for name, answer in answers.items():
        if name != without:
            parts.put(name, Part(answer, 0.0, 1.0, "2026-01-01"))


def _mirage(folder: Path, *words: str) -> None:
    _program(folder, "mirage", *words)


def _program(folder: Path, module: str, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
