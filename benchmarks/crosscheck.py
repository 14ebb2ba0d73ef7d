"""Simulator compared with real engines: one trace through both, on this machine.

python -m benchmarks.crosscheck [--tiers] [--skip-replay DIR] [--skip-measuring] [--output DIR]

1. The demonstration models are made if they are absent.
2. Their real vLLM engines are measured, one at a time and then served together.
3. `mirage replay configs/crosscheck.yaml` runs the bundled trace under three policies, three times;
   with --tiers configs/crosscheck-tiers.yaml, under the two policies that use tiers.
4. The engines are measured again, since a machine's speed drifts by more than the differences that
   are looked for. The simulator's hardware profile is fitted to both measurements, and the steps of
   each engine separately. No figure of a replay is used for the fit.
5. The simulator runs the same requests under the same policies with that profile.

The program prints each figure, simulated and as the median of the real runs, and whether the
difference is inside its target. It takes about half an hour on two cores. Other work on the machine
falsifies the comparison: the number of other processes that wanted a core is counted, printed, and
given to the simulator.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.host_simulation import Host, setup, simulate
from mirage import config as configuration
from mirage import profiles
from mirage.config import Config
from mirage.protocol import ModelShape
from mirage.simulate.roofline import PS, CostBound
from mirage.tools.demo.models import make_models
from mirage.tools.profile import engines, hardware
from mirage.tools.profile.fitting import least_squares
from mirage.tools.profile.hardware import ProfileProvenance
from mirage.tools.profile.measuring import Measurements, Measuring, all_parts
from mirage.tools.profile.parts import Parts
from mirage.tools.profile.plan import QUICK, THOROUGH, Effort
from mirage.tools.profile.quiet import WATCH_HZ, others_watched
from mirage.tools.profile.serving import Extra
from mirage.tools.profile.understanding import Measured, understood
from mirage.tools.replay.policies import chosen
from mirage.tools.report.origin import machine
from mirage.workload import dealing, trace
from mirage.workload.dealing import TenantRequest
from traces import SAMPLE

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "configs" / "demo.yaml"
"""Configuration whose engines are measured, all at the same time: what they cost each other must be
known too.
"""
CONFIG = ROOT / "configs" / "crosscheck.yaml"
"""Configuration of the replay: the same models, in turns."""
TIERED = ROOT / "configs" / "crosscheck-tiers.yaml"
"""Configuration of the replay with ``--tiers``: in turns, and with memory below the device."""
CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "HF_HOME": "huggingface",
    "XDG_CACHE_HOME": "",
    "XDG_CONFIG_HOME": "config",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "MPLCONFIGDIR": "matplotlib",
}
"""Folder below `.cache` for each of these environment variables, as in the Makefile, so that
engines start from a warm cache and write nothing elsewhere.
"""

REPLAYS = 3
"""Replays of each policy, if not told otherwise."""
ENDING_S = 3
"""Seconds that a replay takes after its last request: the server ends."""


@dataclass(frozen=True)
class Aim:
    """A compared figure. `within` is the allowed difference as a part of the real figure; if it is
    None the figure is only shown.
    """

    title: str
    key: str
    within: float | None = None
    at_least: float = 0.0
    """Difference, in the figure's own unit, up to which it is inside the target in any case."""


AIMS = (
    Aim("preemptions", "preemptions", 0.15, 1),
    Aim("layers remapped, most", "layers_remapped_max", 0.15),
    Aim("layers remapped, mean", "layers_remapped_mean", 0.15),
    Aim("TTFT P50, ms", "p50_ttft_ms", 0.25),
    Aim("TPOT P50, ms", "p50_tpot_ms", 0.25),
    Aim("KV blocks granted, most", "kv_blocks_granted_max"),
    Aim("parameters streamed, MiB", "streamed_mib"),
    Aim("TTFT P99, ms", "p99_ttft_ms"),
    Aim("duration, s", "duration"),
    Aim("KV copied down, MiB", "kv_down_mib"),
    Aim("KV brought up, MiB", "kv_up_mib"),
)


# -- 2 and 4: measuring -----------------------------------------------------------------------


def _environment() -> dict[str, str]:
    cache = {name: str(ROOT / ".cache" / folder) for name, folder in CACHES.items()}
    return cache | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"} | dict(os.environ)


def measured_in(config: Config, folder: Path, effort: Effort, *, again: bool) -> Measurements:
    """All measurements of `mirage profile`, kept in `folder`; with `again` they are made anew."""
    measuring = Measuring(MEASURED, config, effort)
    parts = Parts(folder, measuring.key())
    if again:
        parts.forget()
    with measuring:
        found = all_parts(measuring, parts)
    others = statistics.mean(part.others for part in found.parts.values())
    print(f"measured beside {others:.1f} other running processes", file=sys.stderr)
    return found


def together(config: Config, times: Sequence[Measurements]) -> Measured:
    """Figures of the machine, fitted to all measurements together."""
    return understood(
        [found.engines for found in times],
        [found.transfers for found in times],
        [found.message for found in times],
        [found.served for found in times],
        {tenant.name: profiles.model(f"demo-{tenant.name}") for tenant in config.tenants},
        {tenant.name: engines.loads(tenant) for tenant in config.tenants},
        os.cpu_count() or 1,
    )


def plane(samples: Sequence[Mapping[str, Any]], clock: str = "cpu_s") -> list[float]:
    """Seconds of a step: fixed, per sequence, per context token, per prefill token, and per area.

    Least squares in relative terms over samples of `mirage.engine.steptimes`; `clock` is the
    samples' time that counts, `cpu_s` or `wall_s`. In a roofline the slowest bound hides the
    others; here all parts of a step add up, as they do when one core computes matrices and
    attention one after the other.
    """
    work = ("sequences", "context", "prefill", "area")
    rows = np.array([[1, *(sample[key] for key in work)] for sample in samples], dtype=np.float64)
    seconds = np.array([sample[clock] for sample in samples])
    return least_squares(rows / seconds[:, None])


def own_steps(config: Config, times: Sequence[Measurements]) -> dict[str, CostBound]:
    """Cost of each engine's own steps, by the title of its model."""
    found = {}
    for tenant in config.tenants:
        answers = [once.engines[tenant.name] for once in times]
        samples = [sample for each in answers for sample in each["samples"]]
        seconds = plane(samples, answers[0]["clock"])
        title = profiles.model(f"demo-{tenant.name}").title
        found[title] = CostBound(*(round(each * PS) for each in seconds))
    return found


def write_profile(measured: Measured, config: Config, path: Path) -> None:
    """Write the simulator's hardware profile, each figure with its source. It has no time that
    serving adds, because `host_simulation` adds that where it is spent.
    """
    page = config.device.page
    assert page is not None, "a host's pages have a size"
    where = ProfileProvenance(
        program="benchmarks/crosscheck.py",
        machine=machine(),
        date=datetime.now(UTC).date().isoformat(),
        config="configs/demo.yaml",
        memory_bytes=config.device.memory,
        page_bytes=page,
    )
    known = hardware.figures(measured, where, Extra(0.0, 0.0))
    made = "The machine that the cross-check ran on, as one engine finds it: a host as device."
    path.write_text(hardware.document(f"one core of {machine()}", known, made))


def shape_differences(measured: Measured, config: Config, profile: Path) -> list[str]:
    """Differences between the `ModelShape` of the simulator and that of the real engine."""
    found = []
    for tenant in config.tenants:
        simulated = profiles.shape(
            profiles.model(f"demo-{tenant.name}"),
            profiles.hardware(str(profile)),
            config.block_tokens,
            tenant.max_model_len,
            config.device.memory,
        )
        real = measured.shapes[tenant.name]
        for field in ModelShape.__struct_fields__:
            ours, theirs = getattr(simulated, field), getattr(real, field)
            if ours != theirs:
                found.append(f"{tenant.name}: {field} is {theirs:,}, the profiles say {ours:,}")
    return found


# -- 3: replaying -----------------------------------------------------------------------------


def policies(config: Config) -> list[str]:
    """Policies that are compared: those with tiers, if the configuration has any."""
    tiered = config.tiers.host is not None
    return [variant.name for variant in chosen(None, config) if variant.tiers == tiered]


def replay(path: Path, names: Sequence[str], times: int, output: Path) -> dict[str, Any]:
    """Run `mirage replay` under each policy in turn, `times` times. Return a report of all runs,
    which also has the number of other processes that wanted a core, by policy.
    """
    reports: list[dict[str, Any]] = []
    others: dict[str, list[float]] = {name: [] for name in names}
    for number, name in product(range(times), names):
        folder = output / f"{name}-{number}"
        words = ["replay", str(path), "--trace", "sample", "--policy", name]
        command = [sys.executable, "-m", "mirage", *words, "--output", str(folder)]
        with others_watched() as counts:
            subprocess.run(command, check=True, cwd=ROOT)
        reports.append(read_report(folder))
        lasted = round(reports[-1]["runs"][0]["duration"])
        sent = slice(-(lasted + ENDING_S) * WATCH_HZ, -ENDING_S * WATCH_HZ)
        others[name].append(statistics.mean(counts[sent]))
    means = {name: statistics.mean(found) for name, found in others.items()}
    report = reports[0] | {"runs": [r["runs"][0] for r in reports], "others": means}
    (output / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    return report


def read_report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def real_figures(run: Mapping[str, Any]) -> dict[str, float]:
    """Figures of a run in a report, with the mean over time of the layers that were away."""
    away = [
        [value or 0 for value in tenant["layers_remapped"]]
        for tenant in run["timeline"]["tenants"].values()
    ]
    return {
        **{aim.key: run[aim.key] for aim in AIMS if aim.key in run},
        "layers_remapped_mean": statistics.mean(map(sum, zip(*away, strict=True))),
        **mebibytes(run),
    }


def mebibytes(run: Mapping[str, Any]) -> dict[str, float]:
    """Figures in MiB of the bytes that a run copied, real or simulated."""
    copied = {
        "streamed_mib": "bytes_streamed",
        "kv_down_mib": "kv_bytes_down",
        "kv_up_mib": "kv_bytes_up",
    }
    return {title: run[key] / profiles.MIB for title, key in copied.items()}


# -- 5: simulating and comparing ---------------------------------------------------------------


def calls_of(config: Config, report: Mapping[str, Any]) -> list[TenantRequest]:
    """Requests of a replay, built again from its report."""
    path = SAMPLE if report["trace"] == "sample" else Path(report["trace"])
    window = report["window"] and (report["window"][0], report["window"][1])
    rows = trace.select(path, window, report["limit"])
    return dealing.build(config, rows, report["time_scale"], report["length_scale"], report["seed"])


def compare(real: Mapping[str, float], simulated: Mapping[str, float]) -> list[dict[str, Any]]:
    """One row for each aim: real and simulated figure, difference, and whether it is inside the
    target (None if the aim has no target).
    """
    rows = []
    for aim in AIMS:
        ours, theirs = float(simulated[aim.key]), float(real[aim.key])
        difference = ours - theirs
        bound = max(aim.at_least, (aim.within or 0.0) * theirs)
        rows.append(
            {
                "figure": aim.title,
                "real": theirs,
                "simulated": ours,
                "difference": difference / theirs if theirs else None,
                "within": aim.within,
                "inside": None if aim.within is None else abs(difference) <= bound,
            }
        )
    return rows


def show(compared: Mapping[str, Sequence[Mapping[str, Any]]], console: Console) -> None:
    """Print the table of real and simulated figures."""
    table = Table("policy", "figure", title="Real engines and the simulator")
    for column in ("real", "simulated", "difference", "aim"):
        table.add_column(column, justify="right")
    for policy, rows in compared.items():
        for number, row in enumerate(rows):
            table.add_row(
                policy if number == 0 else "",
                row["figure"],
                f"{row['real']:,.1f}",
                f"{row['simulated']:,.1f}",
                "" if row["difference"] is None else f"{100 * row['difference']:+.0f} %",
                _verdict(row),
                end_section=number == len(rows) - 1,
            )
    console.print(table)


def _verdict(row: Mapping[str, Any]) -> str:
    if row["inside"] is None:
        return ""
    return f"{100 * row['within']:.0f} %: {'inside' if row['inside'] else 'OUTSIDE'}"


def check(
    config: Config,
    measured: Measured,
    steps: Mapping[str, CostBound],
    profile: Path,
    report: Mapping[str, Any],
) -> dict[str, list[dict[str, Any]]]:
    """Rows of `compare` by policy: medians of the real runs against simulated figures. `steps` is
    what `own_steps` returns.
    """
    calls, made = calls_of(config, report), setup(config, profile, measured.shapes)
    compared = {}
    for name in policies(config):
        runs = [real_figures(run) for run in report["runs"] if run["policy"] == name]
        real = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        others = report.get("others", {}).get(name, 0.0)
        host = Host(**vars(measured.serving), others=others, steps=steps)
        found = simulate(config, made, name, calls, host)
        compared[name] = compare(real, found | mebibytes(found))
    return compared


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tiers", action="store_true", help="turns with memory below the device")
    parser.add_argument("--replays", type=int, default=REPLAYS, help="of each policy")
    parser.add_argument("--skip-replay", type=Path, metavar="DIR", help="use DIR/report.json")
    parser.add_argument("--skip-measuring", action="store_true", help="use what was measured last")
    parser.add_argument(
        "--quick", action="store_true", help="measure less: a trial of this program"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "crosscheck")
    return parser.parse_args()


def main() -> int:
    """Run the cross-check. Exit code 0 if all figures are inside their targets, else 1."""
    asked, console = options(), Console(width=110)
    output: Path = asked.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    make_models(ROOT / "out" / "models")
    os.environ.update(_environment())
    path = TIERED if asked.tiers else CONFIG
    config, served = configuration.load(path), configuration.load(MEASURED)
    effort, again = QUICK if asked.quick else THOROUGH, not asked.skip_measuring
    before = measured_in(served, output / "before", effort, again=again)
    if asked.skip_replay:
        report = read_report(asked.skip_replay)
    else:
        report = replay(path, policies(config), asked.replays, output / "replay")
    after = measured_in(served, output / "after", effort, again=again)
    measured, hardware_file = together(served, [before, after]), output / "host.yaml"
    write_profile(measured, served, hardware_file)
    for line in shape_differences(measured, config, hardware_file):
        console.print(line)
    steps = own_steps(served, [before, after])
    compared = check(config, measured, steps, hardware_file, report)
    known = {k: v for k, v in asdict(measured).items() if k != "shapes"}
    (output / "measured.json").write_text(json.dumps(known, indent=1) + "\n")
    (output / "compared.json").write_text(json.dumps(compared, indent=1) + "\n")
    show(compared, console)
    inside = [row["inside"] for rows in compared.values() for row in rows]
    return int(False in inside)


if __name__ == "__main__":
    sys.exit(main())
