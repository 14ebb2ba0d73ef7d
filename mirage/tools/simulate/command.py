"""``mirage simulate``: one experiment under several policies and seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mirage.config import ConfigError
from mirage.processes.exits import exits
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.tools.report.files import make_room, write_all

if TYPE_CHECKING:
    from mirage.simulate.experiment import Setup
    from mirage.simulate.fleet.setup import FleetSetup
    from mirage.simulate.run import Metrics
    from mirage.simulate.variants import Variant
    from mirage.tools.simulate.report import Result

FILES = ("result.json", "report.html")
MOST_SEEDS = 1000


def simulate_command(
    experiment: Annotated[
        Path, typer.Argument(help="YAML file; see configs/experiments.", metavar="EXPERIMENT")
    ],
    seeds: Annotated[
        str, typer.Option(help="Seeds, as 0-4, 3 or 0,2,7. The same seed gives the same result.")
    ] = "0-4",
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policies besides static and pooled, separated by commas; overrides EXPERIMENT.",
            metavar="A,B",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder for result.json and report.html.", metavar="DIR")
    ] = Path("out/simulate"),
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes; one per core if left out.")
    ] = None,
) -> None:
    """Simulate models that share a large GPU, policy by policy, and compare them in a report.

    Engines, requests and steps are simulated; what moves memory is the code that
    `mirage serve` decides with. Needs no GPU.
    """
    with exits():
        numbers = parse_seeds(seeds)
        with terminate_like_interrupt():
            simulate(experiment, numbers, policy, output, processes)


def simulate(
    path: Path,
    seeds: list[int],
    policies: str | None,
    output: Path,
    processes: int | None = None,
    known: Mapping[str, Variant] | None = None,
) -> Result:
    """Run all policies and seeds, in at most `processes` at a time (None: one for each core), write
    ``result.json`` and ``report.html``, print the table.

    `known` are the variants that `policies` may name, None for those that can be served. Raises
    `ConfigError` or `TraceError` for what cannot be simulated, `RunKilled` if a process was killed,
    `KeyboardInterrupt` on Ctrl-C; then nothing is written.
    """
    from mirage.tools.simulate import report, table

    setup = _setup(path, policies, known)
    make_room(output, [output / name for name in FILES])
    result = report.build(setup, seeds, _run(setup, seeds, processes))
    _write(result, output)
    table.show(result, output, Console())
    return result


def parse_seeds(text: str) -> list[int]:
    """Seeds in a text as ``"0-4"``, ``"3"``, ``"0,2,7"``, or a mixture. Raises `ConfigError` with
    one line for any other text, and for more than `MOST_SEEDS`.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ConfigError(f"--seeds {text!r}: write whole numbers from 0, as 0-4, 3 or 0,2,7")
        if len(found) + last - first >= MOST_SEEDS:
            raise ConfigError(f"--seeds {text!r}: at most {MOST_SEEDS} seeds")
        found |= dict.fromkeys(range(first, last + 1))
    return list(found)


def _setup(
    path: Path, policies: str | None, known: Mapping[str, Variant] | None
) -> Setup | FleetSetup:
    from mirage.simulate.fleet.loading import load
    from mirage.simulate.variants import VARIANTS

    known = VARIANTS if known is None else known
    setup = load(path, known)
    if policies is None:
        return setup
    return setup.comparing([name.strip() for name in policies.split(",")])


def _run(setup: Setup | FleetSetup, seeds: list[int], processes: int | None) -> list[Metrics]:
    from mirage.tools.simulate.pool import SimulationJob, run_all
    from mirage.tools.simulate.progress import counting

    jobs = [
        SimulationJob(setup, variant.name, seed) for seed in seeds for variant in setup.variants
    ]
    with counting(len(jobs)) as seen:
        return run_all(jobs, processes, seen)


def _write(result: Result, output: Path) -> None:
    from mirage.tools.simulate import html, report

    write_all(
        {
            output / "result.json": report.as_json(result),
            output / "report.html": html.render(result),
        }
    )
