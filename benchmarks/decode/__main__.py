"""Simulate a decoding batch over tiers under several policies, and compare them in a report.

    .venv/bin/python -m benchmarks.decode FILE [--seeds 0-4] [--policy A,B] [--output DIR]

FILE is as `benchmarks/experiments/tierkv.yaml`. Writes DIR/result.json and DIR/report.html.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from benchmarks.decode import html, report
from benchmarks.decode.setup import DecodeSetup, Job, load
from mirage.processes.exits import exits
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.tools.report.files import make_room, write_all
from mirage.tools.simulate.command import parse_seeds
from mirage.tools.simulate.pool import run_all
from mirage.tools.simulate.progress import counting


def main() -> None:
    asked = arguments()
    with exits(), terminate_like_interrupt():
        setup, seeds = with_policies(load(asked.file), asked.policy), parse_seeds(asked.seeds)
        decode(setup, seeds, asked.output, asked.processes)


def decode(setup: DecodeSetup, seeds: list[int], output: Path, processes: int | None) -> None:
    """Run the simulation, write both files and print the table. Raises `ConfigError` if the device
    or the tiers are too small, and `RunKilled` if the process of a run was killed.
    """
    files = output / "result.json", output / "report.html"
    make_room(output, files)
    jobs = [Job(setup, name, seed) for seed in seeds for name in setup.policies]
    with counting(len(jobs), what="decode") as seen:
        result = report.build(setup, seeds, run_all(jobs, processes, seen))
    write_all(dict(zip(files, (report.as_json(result), html.render(result)), strict=True)))
    report.show(result, output, Console())


def with_policies(setup: DecodeSetup, names: str | None) -> DecodeSetup:
    """The setup with only the policies in the comma-separated list `names`, if that is given."""
    if names is None:
        return setup
    policies = [name.strip() for name in names.split(",")]
    return DecodeSetup(setup.experiment.model_copy(update={"policies": policies}), setup.near)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--seeds", default="0-4", help="as 0-4, 3 or 0,2,7")
    parser.add_argument("--policy", metavar="A,B", help="overrides those of FILE")
    parser.add_argument("--output", type=Path, default=Path("out/decode"), metavar="DIR")
    parser.add_argument("--processes", type=int, help="runs at a time; one per core if left out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
