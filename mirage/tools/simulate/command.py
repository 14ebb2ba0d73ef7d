"""``mirage simulate``: an experiment under several policies and seeds, or the paper's claims."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mirage.config import ConfigError
from mirage.processes.exits import exits
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.tools.report.files import make_room, write_all
from mirage.workload.chosen import located

if TYPE_CHECKING:
    from mirage.simulate.experiment import Setup
    from mirage.simulate.run import Metrics
    from mirage.tools.simulate.report import Result

FILES = ("result.json", "report.html", "claims.json")
MOST_SEEDS = 1000


def simulate_command(
    experiment: Annotated[
        Path | None,
        typer.Argument(help="YAML file; see configs/experiments.", metavar="EXPERIMENT"),
    ] = None,
    claims: Annotated[
        bool, typer.Option("--claims", help="Check the paper's claims instead of an experiment.")
    ] = False,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="As 0-4, 3 or 0,2,7; the same seed, the same result.",
            show_default="0-4; with --claims 20-29",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policies, separated by commas, beside static and pooled; overrides EXPERIMENT.",
            metavar="A,B",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder for result.json and report.html.", metavar="DIR")
    ] = Path("out/simulate"),
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; one per core if left out.")
    ] = None,
    trace_file: Annotated[
        Path | None,
        typer.Option("--trace", help="With --claims: a trace with arrivals.", metavar="FILE"),
    ] = None,
) -> None:
    """Simulate models that share a large GPU, policy by policy, and compare them in a report.

    Engines, requests and steps are simulated; what moves memory is the code that
    `mirage serve` decides with. Needs no GPU.
    """
    with exits():
        _check_words(experiment, claims, policy, trace_file)
        numbers = parse_seeds(seeds or ("20-29" if claims else "0-4"))
        with terminate_like_interrupt():
            if experiment is not None and _decodes(experiment):
                _decode(experiment, numbers, policy, output, processes)
            elif experiment is not None:
                simulate(experiment, numbers, policy, output, processes)
            else:
                _check_claims(numbers, output, processes, trace_file)


def simulate(
    path: Path,
    seeds: list[int],
    policies: str | None,
    output: Path,
    processes: int | None = None,
) -> Result:
    """Run everything, write ``result.json`` and ``report.html``, print the table.

    Raises `ConfigError` or `TraceError` for what cannot be simulated, `RunKilled` if a
    process was killed, `KeyboardInterrupt` on Ctrl-C; then nothing is written.
    """
    from mirage.tools.simulate import report, table

    setup = _setup(path, policies)
    make_room(output, [output / name for name in FILES])
    result = report.build(setup, seeds, _run(setup, seeds, processes))
    _write(result, output)
    table.show(result, output, Console())
    return result


def parse_seeds(text: str) -> list[int]:
    """``"0-4"``, ``"3"``, ``"0,2,7"``, or a mixture. Raises `ConfigError` with one line."""
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


def _check_words(
    experiment: Path | None, claims: bool, policy: str | None, trace: Path | None
) -> None:
    """Raises `ConfigError` for options that do not go together."""
    if (experiment is not None) == claims:
        found = f"both {str(experiment)!r} and --claims" if claims else "neither"
        raise ConfigError(f"simulate takes an experiment's file or --claims: found {found}")
    if claims and policy is not None:
        raise ConfigError(f"--policy {policy!r} is for an experiment: leave it out with --claims")
    if trace is not None and not claims:
        raise ConfigError(
            f"--trace {str(trace)!r} goes with --claims: an experiment names its own, workload.file"
        )


def _setup(path: Path, policies: str | None) -> Setup:
    from mirage.simulate.experiment import Setup, load

    setup = load(path)
    if policies is None:
        return setup
    names = [name.strip() for name in policies.split(",")]
    return Setup(setup.experiment.model_copy(update={"policies": names}), setup.near)


def _run(setup: Setup, seeds: list[int], processes: int | None) -> list[Metrics]:
    from mirage.tools.simulate.pool import Job, run_all
    from mirage.tools.simulate.progress import counting

    jobs = [Job(setup, variant.name, seed) for seed in seeds for variant in setup.variants]
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


def _decodes(path: Path) -> bool:
    from mirage.config import read_yaml
    from mirage.simulate.decoding import asks_to_decode

    return asks_to_decode(read_yaml(path))


def _decode(
    path: Path, seeds: list[int], policies: str | None, output: Path, processes: int | None
) -> None:
    """A decoding batch over tiers: write both files, print the table."""
    from mirage.simulate import decode_html, decode_report, decoding
    from mirage.tools.simulate.pool import Job, run_all
    from mirage.tools.simulate.progress import counting

    setup = decoding.load(path)
    if policies is not None:
        names = [name.strip() for name in policies.split(",")]
        changed = setup.experiment.model_copy(update={"policies": names})
        setup = decoding.DecodeSetup(changed, setup.near)
    make_room(output, [output / name for name in FILES])
    jobs = [Job(setup, name, seed) for seed in seeds for name in setup.policies]
    with counting(len(jobs)) as seen:
        result = decode_report.build(setup, seeds, run_all(jobs, processes, seen))
    write_all(
        {
            output / "result.json": decode_report.as_json(result),
            output / "report.html": decode_html.render(result),
        }
    )
    decode_report.show(result, output, Console())


def _check_claims(
    seeds: list[int], output: Path, processes: int | None, trace: Path | None
) -> None:
    from mirage.simulate.claims_command import command as claims

    file = None if trace is None else located(str(trace))
    make_room(output, [output / name for name in FILES])
    claims(seeds, output, processes, file, Console(stderr=True))
