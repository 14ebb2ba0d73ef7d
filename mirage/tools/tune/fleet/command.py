"""`mirage tune --devices`: a table and a page from an experiment's file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from mirage import profiles
from mirage.config import ConfigError, read_yaml, validated
from mirage.simulate.experiment import Experiment, with_traces
from mirage.tools.report.files import make_room, write_all
from mirage.tools.report.slo import Slo
from mirage.tools.report.terminal import plain
from mirage.tools.simulate.pool import run_all
from mirage.tools.simulate.progress import counting
from mirage.tools.tune.fleet import result
from mirage.tools.tune.fleet.counting import CountJob
from mirage.tools.tune.fleet.windows import windows

FILES = ("devices.json", "devices.html")
USUAL = Slo(ttft_ms=2000.0, tpot_ms=100.0)


@dataclass(frozen=True)
class SizeWish:
    """Profiles of the kinds of devices, limits, seconds of a window, seed, and processes."""

    kinds: list[str]
    slo: Slo
    seconds: float
    seed: int
    processes: int | None


def parse_kinds(text: str) -> list[str]:
    """Kinds of devices in a text as ``h100,gh200``. Raises `ConfigError` if a kind is empty or
    written twice."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(f"--devices {text!r}: write kinds of devices once each, as h100,gh200")
    return names


def size(path: Path, wish: SizeWish, output: Path) -> result.Result:
    """Count the devices for an experiment's workload, write the files, print a table for each kind.

    Raises `ConfigError` and `TraceError` for experiments for which devices cannot be counted.
    """
    raw = read_yaml(path)
    if not isinstance(raw, dict) or "workload" not in raw:
        raise ConfigError(
            f"{path}: --devices counts them for an experiment of mirage simulate, with tenants and "
            "workload: name such a file"
        )
    near = path.parent
    traffic = {key: value for key, value in raw.items() if key not in ("devices", "placement")}
    asked = with_traces(validated(Experiment, traffic, path), near)
    for kind in wish.kinds:
        profiles.hardware(kind, near)
    each = windows(asked, near, wish.seed, wish.seconds)
    make_room(output, [output / name for name in FILES])
    jobs = [
        CountJob(window, each[number - 1], near, kind, wish.slo)
        for kind in wish.kinds
        for number, window in enumerate(each)
    ]
    with counting(len(jobs), what="tune") as seen:
        runs = run_all(jobs, wish.processes, seen)
    built = result.build(asked.title, str(wish.slo), wish.seconds, runs, _words(path, wish, output))
    texts = result.as_json(built), result.page(built)
    write_all({output / name: text for name, text in zip(FILES, texts, strict=True)})
    _show(built, output, Console())
    return built


def _words(path: Path, wish: SizeWish, output: Path) -> list[str]:
    """Words of the command that finds the same answer again."""
    words = ["mirage", "tune", str(path), "--devices", ",".join(wish.kinds)]
    words += ["--slo", str(wish.slo), "--window", f"{wish.seconds:g}"]
    return [*words, "--seed", str(wish.seed), "--output", str(output)]


def _show(built: result.Result, output: Path, console: Console) -> None:
    for kind, steps in built["kinds"].items():
        console.print(plain(f"devices: {kind}", result.HEAD, result.rows(steps)))
    for line in result.sentences(built):
        console.out(line, highlight=False)
    console.out(result.ENOUGH_IS, highlight=False)
    console.out(f"Report: {output / FILES[1]}, {output / FILES[0]}", highlight=False)
