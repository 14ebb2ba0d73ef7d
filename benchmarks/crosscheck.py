"""The simulator against real engines: one trace through both, on this machine.

python benchmarks/crosscheck.py [--skip-replay DIR] [--skip-measuring] [--output DIR]

1. The demonstration models are made if they are absent.
2. Their real vLLM engines are measured, one at a time and then served together.
3. `mirage replay configs/crosscheck.yaml` runs the bundled trace under three policies, three times.
4. The engines are measured again, since a machine's speed drifts by more than what is looked for.
   The simulator's hardware profile is fitted to both. Nothing of a replay goes into it.
5. The simulator runs the same requests under the same policies with that profile.

Printed: each figure, as the median of the real runs and simulated, and whether the difference is
inside what is aimed at. About half an hour on two cores. What else runs on the machine
falsifies it: how many other processes wanted a core is counted, printed, and told to the simulator.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import yaml
from host_loads import FEW, MANY
from host_profile import Fitted, fit, step
from host_simulation import Extra, Host, setup, simulate
from rich.console import Console
from rich.table import Table

from mirage import config as configuration
from mirage import profiles
from mirage.config import Config, Policy
from mirage.demo.models import make_models
from mirage.protocol import ModelShape
from mirage.replay.report import machine
from mirage.workload import dealing, trace
from mirage.workload.dealing import Call
from traces import SAMPLE

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "configs" / "demo.yaml"
"""All engines at once: what they cost each other must be known too."""
CONFIG = ROOT / "configs" / "crosscheck.yaml"
"""The same models, in turns."""
CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "HF_HOME": "huggingface",
    "XDG_CACHE_HOME": "",
    "XDG_CONFIG_HOME": "config",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "MPLCONFIGDIR": "matplotlib",
}
"""As the Makefile has them, so that engines start from a warm cache and leave nothing behind."""

REPLAYS = 3
WATCH_HZ = 2
ENDING_S = 3
"""Seconds that a replay takes after its last request: the server ends."""


@dataclass(frozen=True)
class Aim:
    """A figure that is compared. `within` is a share of the real one; None only shows it."""

    title: str
    key: str
    within: float | None = None
    at_least: float = 0.0
    """Difference that is inside in any case."""


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
)


@dataclass(frozen=True)
class Measured:
    """All that the simulator is told of this machine."""

    fitted: Fitted
    link_bytes_per_s: float
    apply_s: float
    message_s: float
    host: Host
    shapes: dict[str, ModelShape]


# -- 2 and 4: measuring -----------------------------------------------------------------------


def measure(config: Config, output: Path) -> None:
    """Each engine alone, a control message, then all served; one child process each."""
    output.mkdir(parents=True, exist_ok=True)
    for tenant in config.tenants:
        _child("engine_times.py", tenant.name, str(output / f"{tenant.name}.json"))
    _child("message_times.py", str(output / "message.json"))
    _child("served_times.py", str(output / "served.json"))


def _child(script: str, *arguments: str) -> None:
    command = [sys.executable, str(Path(__file__).parent / script), str(MEASURED), *arguments]
    subprocess.run(command, check=True, env=_environment())


def _environment() -> dict[str, str]:
    cache = {name: str(ROOT / ".cache" / folder) for name, folder in CACHES.items()}
    return cache | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"} | dict(os.environ)


def understood(config: Config, folders: Sequence[Path]) -> Measured:
    """What the children wrote, each time, fitted."""
    times = [
        {t.name: _read(folder / f"{t.name}.json") for t in config.tenants} for folder in folders
    ]
    named = [pair for engines in times for pair in engines.items()]
    every = [engine for _, engine in named]
    hosts = [
        _host(engines, _read(folder / "served.json"), config)
        for engines, folder in zip(times, folders, strict=True)
    ]
    return Measured(
        fitted=fit(
            [
                step(profiles.model(f"demo-{name}"), sample)
                for name, engine in named
                for sample in engine["samples"]
            ]
        ),
        link_bytes_per_s=statistics.median(e["layer_bytes"] / e["load_s"] for e in every),
        apply_s=statistics.median(e["apply_s"] for e in every),
        message_s=statistics.mean(_read(f / "message.json")["message_s"] for f in folders),
        host=_between(hosts),
        shapes={name: msgspec.convert(engine["shape"], ModelShape) for name, engine in named},
    )


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _between(hosts: Sequence[Host]) -> Host:
    """The mean of each figure."""

    def mean(*values: Any) -> Any:
        if isinstance(values[0], tuple):
            means = [mean(*each) for each in zip(*values, strict=True)]
            return Extra(*means) if isinstance(values[0], Extra) else tuple(means)
        return statistics.mean(values)

    figures = [vars(host) for host in hosts]
    return Host(**{name: mean(*(each[name] for each in figures)) for name in figures[0]})


def _host(engines: Mapping[str, Any], served: Mapping[str, Any], config: Config) -> Host:
    """What serving adds, from `served_times.py`."""
    spent_s = statistics.mean(served["front_s"].values())
    alone = {group["tenants"][0]: group for group in served["loads"]["1"]}
    many = {t.name: MANY.limited(t.max_num_seqs) for t in config.tenants}
    engine, front = [], []
    for name, bare in engines.items():
        for load, found, bare_s in (
            (FEW, alone[name], bare["request_s"]),
            (many[name], served["crowded"][name], bare["crowded_s"]),
        ):
            steps_s = load.at_once / load.output  # of a request's seconds, in those of a step
            engine.append((load.at_once, (found["engine_s"] - bare_s) * steps_s))
            front.append((load.at_once, (found["front_s"] - spent_s) * steps_s))
    spent = [statistics.mean(g["engine_s"] for g in groups) for groups in served["loads"].values()]
    latencies = [
        served["first_token_s"][name] - _prefill_s(engine, served["prompt_tokens"])
        for name, engine in engines.items()
    ]
    return Host(
        cores=os.cpu_count() or 1,
        inflation=tuple(seconds / spent[0] for seconds in spent),
        engine=_extra(engine),
        front=_extra(front),
        latency_s=statistics.median(latencies),
        request_s=statistics.mean(served["burst_s"].values()),
        load_s=statistics.median(engine["load_s"] for engine in engines.values()),
    )


def _extra(points: Sequence[tuple[int, float]]) -> Extra:
    """The line through (sequences in a step, seconds that serving adds to it)."""
    sequences, seconds = zip(*points, strict=True)
    by_token, by_step = statistics.linear_regression(sequences, seconds)
    return Extra(max(0.0, by_step), max(0.0, by_token))


def _prefill_s(engine: Mapping[str, Any], tokens: int) -> float:
    """Of the step that computed a prompt of so many tokens alone."""
    samples = engine["samples"]
    alone = [s for s in samples if s["prefill"] == tokens and not s["sequences"]]
    return float(alone[0]["cpu_s"])


def write_profile(measured: Measured, config: Config, path: Path) -> None:
    """The hardware profile, every figure with its source."""
    today = datetime.now(UTC).date().isoformat()
    source = f"measured by benchmarks/crosscheck.py on {machine()}, {today}"
    own, fitted = "configs/demo.yaml", measured.fitted
    figures = {
        "memory_gib": (config.device.memory / profiles.GIB, f"{own}: device.memory"),
        "bandwidth_gb_s": (fitted.bytes_per_s / 1e9, source),
        "bandwidth_efficiency": (1.0, "inside the measured bandwidth"),
        "compute_tflop_s": (fitted.flop_per_s / 1e12, source),
        "compute_efficiency": (1.0, "inside the measured compute"),
        "link_gb_s": (measured.link_bytes_per_s / 1e9, source),
        "link_mixed_gb_s": (measured.link_bytes_per_s / 1e9, "taken to be that of one way"),
        "step_overhead_ms": (fitted.overhead_s * 1e3, source),
        "sequence_overhead_us": (fitted.sequence_s * 1e6, source),
        "reserved_mb": (0.0, "engines on a host share nothing but the machine"),
        "page_mib": (config.device.page / profiles.MIB, f"{own}: device.page"),
        "apply_ms": (measured.apply_s * 1e3, source),
        "message_ms": (measured.message_s * 1e3, source),
    }
    raw = {"title": f"one core of {machine()}"} | {
        name: {"value": float(f"{value:.10g}"), "source": why}
        for name, (value, why) in figures.items()
    }
    path.write_text(
        "# The machine that the cross-check ran on, as one engine finds it: a host as device.\n\n"
        + yaml.safe_dump(raw, sort_keys=False, width=1000, default_flow_style=None)
    )


def shape_differences(measured: Measured, config: Config, hardware: Path) -> list[str]:
    """Where the simulator would have another `ModelShape` than the real engine tells."""
    found = []
    for tenant in config.tenants:
        simulated = profiles.shape(
            profiles.model(f"demo-{tenant.name}"),
            profiles.hardware(str(hardware)),
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


@contextmanager
def others_watched() -> Iterator[list[int]]:
    """Fills the list with the number of other processes that want a core, twice a second."""
    counts: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1 / WATCH_HZ):
            counts.append(_others_running())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield counts
    over.set()
    thread.join()


def _others_running() -> int:
    """Processes in state R that are neither this one nor below it."""
    parents: dict[int, int] = {}
    running = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue  # it has ended
        state, parent = rest.split()[:2]
        pid = int(name.split()[0])
        parents[pid] = int(parent)
        if state == "R":
            running.add(pid)
    return sum(os.getpid() not in _line(pid, parents) for pid in running)


def _line(pid: int, parents: Mapping[int, int]) -> list[int]:
    """A process, its parent, and so on."""
    line = [pid]
    while line[-1] in parents:
        line.append(parents[line[-1]])
    return line


def replay(output: Path) -> dict[str, Any]:
    """`mirage replay` under each policy in turn, several times: one report of all.

    With what other processes took of the cores, by policy.
    """
    reports: list[dict[str, Any]] = []
    others: dict[str, list[float]] = {policy.value: [] for policy in Policy}
    for number, policy in product(range(REPLAYS), Policy):
        folder = output / f"{policy.value}-{number}"
        words = ["replay", str(CONFIG), "--trace", "sample", "--policy", policy.value]
        command = [sys.executable, "-m", "mirage", *words, "--output", str(folder)]
        with others_watched() as counts:
            subprocess.run(command, check=True, env=_environment(), cwd=ROOT)
        reports.append(read_report(folder))
        lasted = round(reports[-1]["runs"][0]["duration"])
        sent = slice(-(lasted + ENDING_S) * WATCH_HZ, -ENDING_S * WATCH_HZ)
        others[policy.value].append(statistics.mean(counts[sent]))
    means = {policy: statistics.mean(found) for policy, found in others.items()}
    report = reports[0] | {"runs": [r["runs"][0] for r in reports], "others": means}
    (output / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    return report


def read_report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def real_figures(run: Mapping[str, Any]) -> dict[str, float]:
    """A run of a report, with the mean over time of the layers that were away."""
    away = [
        [value or 0 for value in tenant["alpha"]] for tenant in run["timeline"]["tenants"].values()
    ]
    return {
        **{aim.key: run[aim.key] for aim in AIMS if aim.key in run},
        "layers_remapped_mean": statistics.mean(map(sum, zip(*away, strict=True))),
        "streamed_mib": run["bytes_streamed"] / profiles.MIB,
    }


# -- 5: simulating and comparing ---------------------------------------------------------------


def calls_of(config: Config, report: Mapping[str, Any]) -> list[Call]:
    """The very requests of a replay, made again from what its report says of it."""
    path = SAMPLE if report["trace"] == "sample" else Path(report["trace"])
    window = report["window"] and (report["window"][0], report["window"][1])
    rows = trace.select(path, window, report["limit"])
    return dealing.build(config, rows, report["time_scale"], report["length_scale"], report["seed"])


def compare(real: Mapping[str, float], simulated: Mapping[str, float]) -> list[dict[str, Any]]:
    """One row per aim. `inside` is None where nothing is aimed at."""
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
    """Print the table."""
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
    config: Config, measured: Measured, hardware: Path, report: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """All policies of a report, by policy: medians of the real runs, and simulated."""
    calls, made = calls_of(config, report), setup(config, hardware, measured.shapes)
    compared = {}
    for policy in Policy:
        runs = [real_figures(run) for run in report["runs"] if run["policy"] == policy.value]
        real = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        others = report.get("others", {}).get(policy.value, 0.0)
        found = simulate(config, made, policy, calls, replace(measured.host, others=others))
        found["streamed_mib"] = found["bytes_streamed"] / profiles.MIB
        compared[policy.value] = compare(real, found)
    return compared


def watched_measure(config: Config, folder: Path, console: Console) -> None:
    """Measure, and say beside how much else."""
    with others_watched() as counts:
        measure(config, folder)
    console.print(f"measured beside {statistics.mean(counts):.1f} other running processes")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--skip-replay", type=Path, metavar="DIR", help="use DIR/report.json")
    parser.add_argument("--skip-measuring", action="store_true", help="use what was measured last")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "crosscheck")
    return parser.parse_args()


def main() -> int:
    """0 if all is inside, 1 if not."""
    chosen, console = options(), Console(width=110)
    output: Path = chosen.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    make_models(ROOT / "out" / "models")
    config = configuration.load(CONFIG)
    folders = [output / "before", output / "after"]
    if not chosen.skip_measuring:
        watched_measure(config, folders[0], console)
    report = read_report(chosen.skip_replay) if chosen.skip_replay else replay(output / "replay")
    if not chosen.skip_measuring:
        watched_measure(config, folders[1], console)
    measured, hardware = understood(config, folders), output / "host.yaml"
    write_profile(measured, config, hardware)
    for line in shape_differences(measured, config, hardware):
        console.print(line)
    compared = check(config, measured, hardware, report)
    known = {k: v for k, v in asdict(measured).items() if k != "shapes"}
    (output / "measured.json").write_text(json.dumps(known, indent=1) + "\n")
    (output / "compared.json").write_text(json.dumps(compared, indent=1) + "\n")
    show(compared, console)
    inside = [row["inside"] for rows in compared.values() for row in rows]
    return int(False in inside)


if __name__ == "__main__":
    sys.exit(main())
